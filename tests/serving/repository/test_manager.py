"""What the manager says of its versions, to the metrics and to those who keep something by model."""

from __future__ import annotations

import threading
from pathlib import Path

from modelyard.errors import LoadError
from modelyard.serving import LoadOptions, ModelConfig, ModelSpec, Servable, VersionPolicy, WatchOptions, load_servable
from modelyard.serving.repository import ModelManager
from tests.support.models import publish_affine
from tests.support.waiting import until


def test_versions_are_counted_by_state(tmp_path: Path) -> None:
    for _ in range(3):
        publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    gate = threading.Event()

    def load(config: ModelConfig, version: int, path: Path) -> Servable:
        if version == 2:
            raise LoadError("it is damaged")
        # The newest load first.
        if version == 1:
            gate.wait(60)
        return load_servable(config.name, version, path, LoadOptions())

    config = ModelConfig(name="m", base_path=tmp_path / "m", policy=VersionPolicy(latest=None))
    manager = ModelManager([config], load, WatchOptions(poll_wait_s=0.01, max_load_retries=0))

    def counted(available: int, loading: int, failed: int) -> bool:
        expected = {"available": available, "loading": loading, "unloading": 0, "failed": failed}
        return manager.count_states() == [({"model": "m", "state": key}, n) for key, n in expected.items()]

    manager.start()
    try:
        until(lambda: counted(1, 1, 1), 60)
        gate.set()
        until(lambda: counted(2, 0, 1), 60)
    finally:
        gate.set()
        manager.stop()


def test_who_asked_is_told_when_requests_get_another_version(tmp_path: Path) -> None:
    publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)

    def load(config: ModelConfig, version: int, path: Path) -> Servable:
        return load_servable(config.name, version, path, LoadOptions())

    manager = ModelManager([ModelConfig(name="m", base_path=tmp_path / "m")], load, WatchOptions(poll_wait_s=0.01))
    told = list[str]()
    manager.when_moved(told.append)
    manager.start()
    try:
        until(lambda: told == ["m"], 60)
        publish_affine(tmp_path / "m", slope=2.0, intercept=0.0)
        until(lambda: told == ["m", "m"], 60)
    finally:
        manager.stop()


def test_a_manager_that_leaves_is_not_ready_and_serves_on(tmp_path: Path) -> None:
    publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)

    def load(config: ModelConfig, version: int, path: Path) -> Servable:
        return load_servable(config.name, version, path, LoadOptions())

    manager = ModelManager([ModelConfig(name="m", base_path=tmp_path / "m")], load, WatchOptions(poll_wait_s=0.01))
    manager.start()
    try:
        until(manager.all_ready, 60)
        assert manager.ready("m")
        manager.leave()
        assert not manager.all_ready() and not manager.ready("m")
        with manager.acquire(ModelSpec(name="m")) as servable:
            assert servable.version == 1
    finally:
        manager.stop()
