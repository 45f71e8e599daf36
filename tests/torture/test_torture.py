"""The short version of ``make torture``: each attack on a running server, with an honest client beside it."""

from __future__ import annotations

import pytest

pytest.importorskip("modelyard_core", reason="needs the distribution modelyard-core")

from benchmarks.torture.__main__ import load_cases
from benchmarks.torture.cases import CASES
from benchmarks.torture.runner import run_all

load_cases()


@pytest.mark.parametrize("family", sorted({each.family for each in CASES if each.short}))
def test_nothing_is_lost(family: str) -> None:
    outcomes = list(run_all([each for each in CASES if each.short and each.family == family], short=True))
    assert outcomes
    assert {f"{each.case.title}, {each.transport}": each.problems for each in outcomes if each.problems} == {}
