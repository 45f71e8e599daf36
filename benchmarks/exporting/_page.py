"""The page that the results are shown on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.exporting._cells import Cell

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "what-can-be-exported.md"
DATA = PAGE.with_suffix(".json")
START, END = "<!-- kinds-table: written by make bench NAME=exporting -->", "<!-- kinds-table: end -->"
FORMATS = ("saved_model", "onnx", "tflite")
ROUTES = ("ours", "plain")
_HEADS = {"saved_model": "SavedModel", "onnx": "ONNX", "tflite": "TFLite"}


def load_kinds() -> dict[str, dict[str, str]]:
    """Name, theme and title of every kind."""
    from benchmarks.zoo import all_kinds

    return {name: {"theme": each.theme, "title": each.title} for name, each in all_kinds().items()}


def count(cells: Iterable[Cell]) -> dict[str, int]:
    """The figures at the top of the page, of artefacts that both routes tried."""
    by = {(each.kind, each.form, each.route): each.verdict for each in cells if each.verdict != "skipped"}
    pairs = {key[:2] for key in by if (*key[:2], "ours") in by and (*key[:2], "plain") in by}
    counts: Counter[str] = Counter()
    for kind, form in pairs:
        ours, plain = by[kind, form, "ours"], by[kind, form, "plain"]
        counts[f"ours {ours}"] += 1
        counts[f"plain {plain}"] += 1
        both = {
            (True, True): "both",
            (True, False): "only ours",
            (False, True): "only plain",
            (False, False): "neither",
        }
        counts[both[ours == "right", plain == "right"]] += 1
    counts["artefacts"], counts["kinds"] = len(pairs), len({kind for kind, _ in pairs})
    return dict(counts)


def summary(cells: Iterable[Cell]) -> str:
    """The figures as sentences."""
    found = Counter(count(cells))
    return (
        f"{found['kinds']} kinds, {found['artefacts']} artefacts tried by both.\n"
        f"modelyard: {found['ours right']} right, {found['ours refused']} refused with a reason, "
        f"{found['ours unclear']} unclear, {found['ours wrong']} silently wrong.\n"
        f"Plain converters: {found['plain right']} right, {found['plain fails']} failed, "
        f"{found['plain unclear']} ended the process or hung, {found['plain wrong']} silently wrong.\n"
        f"Right in both: {found['both']}; only with modelyard: {found['only ours']}; only with the plain converter: "
        f"{found['only plain']}; in neither: {found['neither']}."
    )


def table(
    cells: Iterable[Cell],
    kinds: Mapping[str, Mapping[str, str]],
    versions: Mapping[str, str],
    date: str,
    *,
    older: int = 0,
) -> str:
    """The generated part of the page, in Markdown.

    Args:
        cells: All results.
        kinds: Theme and title of each kind by name.
        versions: Of the packages; an empty one for what is not installed.
        date: When it was measured.
        older: Results of an earlier state of what they depend on.

    Returns:
        The text.
    """
    cells = list(cells)
    by = {(each.kind, each.route, each.form): each for each in cells}
    figures = summary(cells).splitlines()
    lines = [*(f"- {each}" for each in figures), ""]
    lines += [
        f"Measured on {date} with {', '.join(f'{name} {version}' for name, version in versions.items() if version)}.",
        *([f"{older} of {len(cells)} results are of an earlier state of the export room."] if older else []),
        "",
    ]
    heads = [*_HEADS.values(), *(f"plain {each}" for each in _HEADS.values())]
    lines += [f"| kind | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    reasons: list[str] = []
    theme = ""
    for name, facts in kinds.items():
        row = [by.get((name, route, form)) for route in ROUTES for form in FORMATS]
        if facts["theme"] != theme:
            theme = facts["theme"]
            lines.append(f"| **{theme}** |{' |' * len(heads)}")
        lines.append(f"| {facts['title']} (`{name}`) | {' | '.join(each.verdict if each else '?' for each in row)} |")
        reasons += [f"- `{name}`, {_HEADS[each.form]}: {each.verdict}. {_short(each.why)}" for each in row
                    if each and each.route == "ours" and each.verdict not in ("right", "skipped")]  # fmt: skip
    return "\n".join([*lines, "", "What modelyard says where it does not publish:", "", *(reasons or ["- nothing"])])


def write(
    cells: Iterable[Cell],
    kinds: Mapping[str, Mapping[str, str]],
    versions: Mapping[str, str],
    date: str,
    *,
    older: int = 0,
    prints: Mapping[tuple[str, str, str], str],
) -> None:
    """Writes the table into the page, and the results beside it.

    The arguments are those of :func:`table`; ``prints`` has by kind, route and format what a result depends on, so that
    a clone knows what is to be measured again.
    """
    cells = list(cells)
    text = PAGE.read_text("utf-8")
    before, rest = text.split(START)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{START}\n{table(cells, kinds, versions, date, older=older)}\n{END}{after}", "utf-8")
    rows = [asdict(each) for each in sorted(cells, key=lambda each: (each.kind, each.route, each.form))]
    for row in rows:
        row["why"] = _short(row["why"])
        row["print"] = prints.get((row["kind"], row["route"], row["form"]), "")
    facts = {"date": date, "versions": versions, "older": older, "counts": count(cells)}
    body = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in rows)
    DATA.write_text(f'{json.dumps(facts, indent=2)[:-2]},\n  "cells": [\n{body}\n  ]\n}}\n', "utf-8")


def _short(text: str) -> str:
    # The log file that a message names is gone.
    text = text.partition("What the libraries said:")[0]
    line = " ".join(text.split()).replace("|", "/").replace("<", "&lt;")
    return line if len(line) <= 300 else f"{line[:297]}..."
