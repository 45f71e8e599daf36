"""The shadow's thread: what it takes, what it drops, and what becomes of a version that cannot answer."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from modelyard.serving.config import LoadOptions, ModelConfig, WatchOptions
from modelyard.serving.repository import ModelManager
from modelyard.serving.requests import ModelSpec
from modelyard.serving.rollout._compare import Comparison
from modelyard.serving.rollout._shadow import Shadow, ShadowJob
from modelyard.serving.servables import load_servable
from tests.support.models import publish_affine

WAIT_S = 60.0
X = np.array([1, 2], np.float32)


def test_requests_are_computed_dropped_or_fail(tmp_path: Path) -> None:
    publish_affine(tmp_path / "m", slope=2.0, intercept=0.0)
    manager = ModelManager(
        [ModelConfig(name="m", base_path=tmp_path / "m")],
        lambda config, version, path: load_servable(config.name, version, path, LoadOptions()),
        WatchOptions(poll_wait_s=0.05),
    )
    manager.start()
    assert manager.wait_until_polled(WAIT_S)
    shadow = Shadow(manager)
    found: list[Comparison | None] = []
    held, go_on, all_done = threading.Event(), threading.Event(), threading.Event()

    def job(spec: ModelSpec, inputs: np.ndarray = X, *, answered: int = 7, last: bool = False) -> ShadowJob:
        def report(comparison: Comparison | None) -> None:
            found.append(comparison)
            if len(found) == 1:
                held.set()
                go_on.wait(WAIT_S)
            if last:
                all_done.set()

        outputs = {"y": 2 * inputs}
        return ShadowJob(
            spec=spec, answered=answered, inputs={"x": inputs}, outputs=outputs, tolerance=0.1, report=report
        )

    good, none = ModelSpec(name="m", version=1), ModelSpec(name="m", version=1, signature="none")
    assert shadow.submit(job(good))
    assert held.wait(WAIT_S)
    # What is larger than all that may wait is dropped, as is what is one too many.
    assert not shadow.submit(job(good, np.zeros(9 << 20, np.float32)))
    taken = [shadow.submit(job(none)), shadow.submit(job(good, answered=1))]
    taken += [shadow.submit(job(good)) for _ in range(61)]
    taken += [shadow.submit(job(good, last=True))]
    assert all(taken)
    assert not shadow.submit(job(good))
    go_on.set()
    assert all_done.wait(WAIT_S)
    # The second has no such signature; the third was answered by the shadow's own version.
    assert found == [Comparison(rows=2, disagreed=0), None, *[Comparison(rows=2, disagreed=0)] * 62]
    shadow.close()
    assert not shadow.submit(job(good))
    manager.stop()


def test_a_shadow_without_requests_ends_at_once() -> None:
    shadow = Shadow(ModelManager((), lambda *_: pytest.fail("nothing to load"), WatchOptions()))
    shadow.close()
