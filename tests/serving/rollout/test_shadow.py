"""The shadow's thread: what it takes, what it drops, and what becomes of a version that cannot answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
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


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ModelManager]:
    for name in ("m", "other"):
        publish_affine(tmp_path / name, slope=2.0, intercept=0.0)
    manager = ModelManager(
        [ModelConfig(name=name, base_path=tmp_path / name) for name in ("m", "other")],
        lambda config, version, path: load_servable(config.name, version, path, LoadOptions()),
        WatchOptions(poll_wait_s=0.05),
    )
    manager.start()
    assert manager.wait_until_polled(WAIT_S)
    yield manager
    manager.stop()


def test_requests_are_computed_dropped_or_fail(manager: ModelManager) -> None:
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


def test_strings_take_the_room_that_they_take(manager: ModelManager) -> None:
    shadow = Shadow(manager)
    text = np.array([b"x" * (65 << 20)], dtype=object)
    job = ShadowJob(
        spec=ModelSpec(name="m", version=1), answered=7, inputs={"x": text}, outputs={"y": X}, tolerance=0.1,
        report=lambda _: pytest.fail("nothing was to be computed"),
    )  # fmt: skip
    assert job.size == (65 << 20) + X.nbytes
    assert not shadow.submit(job)
    shadow.close()


def test_models_take_turns(manager: ModelManager) -> None:
    shadow = Shadow(manager)
    order: list[str] = []
    held, go_on, all_done = threading.Event(), threading.Event(), threading.Event()

    def report(model: str, comparison: Comparison | None) -> None:
        assert comparison == Comparison(rows=2, disagreed=0)
        order.append(model)
        held.set()
        go_on.wait(WAIT_S)
        if len(order) == 68:
            all_done.set()

    def submit(model: str) -> bool:
        spec = ModelSpec(name=model, version=1)
        job = ShadowJob(
            spec=spec, answered=7, inputs={"x": X}, outputs={"y": 2 * X}, tolerance=0.1, report=partial(report, model)
        )
        return shadow.submit(job)

    assert submit("m")
    assert held.wait(WAIT_S)
    # A model whose shadow is behind takes no other model's places, and is no further ahead than its turn.
    assert [submit("m") for _ in range(65)] == [True] * 64 + [False]
    assert [submit("other") for _ in range(3)] == [True] * 3
    go_on.set()
    assert all_done.wait(WAIT_S)
    assert order == ["m", "m", "other", "m", "other", "m", "other", *["m"] * 61]
    shadow.close()


def test_a_shadow_without_requests_ends_at_once() -> None:
    shadow = Shadow(ModelManager((), lambda *_: pytest.fail("nothing to load"), WatchOptions()))
    shadow.close()
