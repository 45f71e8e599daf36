"""Counters as plain data: written as Prometheus' text page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: By family, its series: ``[kind, [[label, value], ...], number]``; a histogram's number is ``[counts, sum]``.
Snapshot = dict[str, list[list[Any]]]
#: Name, kind, help, buckets.
Family = tuple[str, str, str, tuple[float, ...]]


def page(snapshot: Snapshot, families: Sequence[Family]) -> str:
    """The page that Prometheus scrapes, in its text format 0.0.4.

    Args:
        snapshot: What is on it.
        families: All there are.
    """
    lines: list[str] = []
    for name, kind, text, buckets in families:
        lines.append(f"# HELP {name} {text}")
        lines.append(f"# TYPE {name} {kind}")
        for series, labels, number in snapshot.get(name, []):
            if series == "histogram":
                lines.extend(_histogram_lines(name, labels, number, buckets))
            else:
                lines.append(f"{name}{_labels(labels)} {_number(number)}")
    return "\n".join(lines) + "\n"


def _histogram_lines(
    name: str, labels: Sequence[Sequence[str]], number: Sequence[Any], buckets: tuple[float, ...]
) -> list[str]:
    lines, total = [], 0
    # Six digits, as upstream prints bounds: they are part of a series' name.
    for bound, count in zip([*(f"{bucket:g}" for bucket in buckets), "+Inf"], number[0], strict=True):
        total += count
        lines.append(f"{name}_bucket{_labels([*labels, ('le', bound)])} {total}")
    lines.append(f"{name}_sum{_labels(labels)} {_number(number[1])}")
    lines.append(f"{name}_count{_labels(labels)} {total}")
    return lines


def _labels(labels: Sequence[Sequence[str]]) -> str:
    pairs = (f'{name}="{_escape(value)}"' for name, value in labels)
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
