"""Builds HTML and SVG text. Plain strings are escaped, always; only what was built here is not."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

_VOID = frozenset({"img", "meta"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(tag: str, attributes: Mapping[str, object] | None = None, *children: str) -> Markup:
    """One element.

    Args:
        tag: Its name.
        attributes: By name; values are escaped.
        children: Markup as it is, other strings escaped.
    """
    opened = "".join(f' {name}="{html.escape(str(value))}"' for name, value in (attributes or {}).items())
    if tag in _VOID:
        return Markup(f"<{tag}{opened}>")
    return Markup(f"<{tag}{opened}>{join(children)}</{tag}>")


def join(parts: Iterable[str]) -> Markup:
    """Parts one after another.

    Args:
        parts: Markup as it is, other strings escaped.
    """
    return Markup("".join(part if isinstance(part, Markup) else html.escape(part) for part in parts))


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: frozenset[int] = frozenset()) -> Markup:
    """A table that scrolls by itself where the page is narrow.

    Args:
        header: Titles of the columns.
        rows: Cells; the last one of a row that has fewer than the header takes the rest of the line.
        numbers: Columns that hold figures, aligned to the right.
    """

    def attributes(index: int, cells: Sequence[str]) -> dict[str, object] | None:
        if index == len(cells) - 1 < len(header) - 1:
            return {"colspan": len(header) - index, "class": "reason"}
        return {"class": "n"} if index in numbers else None

    def line(tag: str, cells: Sequence[str]) -> Markup:
        return element("tr", None, *(element(tag, attributes(index, cells), cell) for index, cell in enumerate(cells)))

    body = element("tbody", None, *(line("td", row) for row in rows))
    head = element("thead", None, line("th", header))
    return element("div", {"class": "scroll"}, element("table", None, head, body))


def section(title: str, *children: str, lead: str = "") -> Markup:
    """A section with a heading.

    Args:
        title: The heading.
        children: Its content.
        lead: A sentence below the heading.
    """
    intro = [element("p", {"class": "lead"}, lead)] if lead else []
    return element("section", None, element("h2", None, title), *intro, *children)
