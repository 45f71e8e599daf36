"""Writes the tables of docs/reliability.md: one section for each family, between its own marks."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from benchmarks.load import machine
from benchmarks.pages import write_section
from benchmarks.torture.runner import Outcome

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"


def write(family: str, outcomes: Sequence[Outcome], busy: str) -> None:
    """Replaces the section of one family.

    Args:
        family: Of all these outcomes.
        outcomes: The table's rows.
        busy: What else the machine did.
    """
    write_section(PAGE, f"<!-- torture: {family} -->", f"<!-- /torture: {family} -->", _section(outcomes, busy))


def _section(outcomes: Sequence[Outcome], busy: str) -> str:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    lines = [
        f"Run on {today}, {machine()}; {busy}. {sum(each.result.inputs for each in outcomes):,} inputs in "
        f"{sum(each.seconds for each in outcomes):,.0f} s.",
        "",
        "| case | transport | inputs | what happened | honest p99, quiet → beside, ms | worst, ms | memory, MB | |",
        "|---|---|---:|---|---:|---:|---:|---|",
    ]
    return "\n".join([*lines, *map(row, outcomes)])


def row(outcome: Outcome) -> str:
    """A row of the table."""
    figures = [f"{name.replace('_', ' ')} {value:,.4g}" for name, value in outcome.result.figures.items()]
    text = "; ".join(filter(None, [outcome.result.text, *figures]))
    honest = ["", "", ""]
    if outcome.beside.seconds:
        honest = [
            f"{outcome.quiet.p99_ms:.1f} → {outcome.beside.p99_ms:.1f}", f"{outcome.beside.worst_ms:.0f}",
            f"{outcome.growth_mb:+.0f}",
        ]  # fmt: skip
    problems = (" ".join(problem.replace(f"{ROOT}/", "").split())[:200] for problem in outcome.problems)
    verdict = "; ".join(problems).replace("|", "/") or "ok"
    cells = [outcome.case.title, outcome.transport, f"{outcome.result.inputs:,}", text, *honest, verdict]
    return f"| {' | '.join(cells)} |"
