"""A short version of benchmarks/torture's faults: of repositories, processes and networks."""

from __future__ import annotations

import pytest

from benchmarks.torture import network, processes, repository
from benchmarks.torture.cases import CASES, Case
from benchmarks.torture.runner import run_all

MODULES = {each.__name__ for each in (network, processes, repository)}
MINE = [each for each in CASES if each.short and each.run.__module__ in MODULES]


@pytest.mark.parametrize("family", sorted({each.family for each in MINE}))
def test_nothing_is_lost(family: str) -> None:
    cases: list[Case] = [each for each in MINE if each.family == family]
    outcomes = list(run_all(cases, short=True))
    assert len(outcomes) >= len(cases)
    assert {outcome.case.title: outcome.problems for outcome in outcomes if outcome.problems} == {}
    assert all(outcome.result.inputs for outcome in outcomes)
