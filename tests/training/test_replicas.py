from __future__ import annotations

import json

from tests.training.conftest import RunPython


def test_one_and_two_replicas_give_the_same_weights(run_python: RunPython) -> None:
    done = run_python("from tests.training.replicas import main; main()")
    assert done.returncode == 0, done.stderr[-3000:]
    apart = json.loads(done.stdout)
    assert len(apart) == 4
    assert {name: distance for name, distance in apart.items() if distance > 1e-5} == {}
