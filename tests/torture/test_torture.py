"""The short version of ``make torture``: each attack on a running server, with an honest client beside it."""

from __future__ import annotations

import os
import signal
import threading

import pytest

pytest.importorskip("modelyard_core", reason="needs the distribution modelyard-core")

from benchmarks.torture import runner
from benchmarks.torture.__main__ import load_cases
from benchmarks.torture.cases import CASES, Case, Result, Target
from benchmarks.torture.runner import run_all

load_cases()


@pytest.mark.parametrize("family", sorted({each.family for each in CASES if each.short}))
def test_nothing_is_lost(family: str) -> None:
    outcomes = list(run_all([each for each in CASES if each.short and each.family == family], short=True))
    assert outcomes
    assert {f"{each.case.title}, {each.transport}": each.problems for each in outcomes if each.problems} == {}


def test_a_stall_that_outlasts_its_attack_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(target: Target) -> Result:
        os.kill(target.server.process.pid, signal.SIGSTOP)
        threading.Timer(1.0, os.kill, (target.server.process.pid, signal.SIGCONT)).start()
        return Result(inputs=1)

    monkeypatch.setattr(runner, "QUIET_S", 0.1)
    monkeypatch.setattr(runner, "MAX_STALL_MS", 500.0)
    case = Case(family="f", title="t", run=stop, own=False, short=False, transports=("native",), at_capacity=True)
    (outcome,) = run_all([case], short=False)
    (problem,) = outcome.problems
    assert problem.startswith("an honest call took ")
