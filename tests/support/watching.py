"""What tests of watched models need: loaders that fail or wait, versions that are damaged, and what is served."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from modelyard.artifact import Location
from modelyard.serving import LoadOptions, ModelConfig, Servable, VersionState, WatchOptions, load_servable
from modelyard.serving.repository import ModelManager, ModelWatcher

#: What happens in a moment gets as long.
WAIT_S = 60.0

Loader = Callable[[ModelConfig, int, Path], Servable]


def load(config: ModelConfig, version: int, path: Path) -> Servable:
    return load_servable(config.name, version, path, LoadOptions())


class Failing:
    """Loads after some failures."""

    def __init__(self, error: BaseException, failures: int) -> None:
        self.error, self.failures, self.calls = error, failures, 0

    def __call__(self, config: ModelConfig, version: int, path: Path) -> Servable:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return load(config, version, path)


class Gated:
    """Loads once it is let; some versions, or all."""

    def __init__(self, *versions: int) -> None:
        self.versions = versions
        self.entered, self.gate = threading.Event(), threading.Event()
        #: What was asked for, in order.
        self.calls: list[int] = []

    def __call__(self, config: ModelConfig, version: int, path: Path) -> Servable:
        self.calls.append(version)
        if not self.versions or version in self.versions:
            self.entered.set()
            assert self.gate.wait(WAIT_S)
        return load(config, version, path)


def watched(config: ModelConfig, loader: Loader = load, *, retries: int = 5) -> ModelWatcher:
    """A watcher whose aspired versions were tried."""
    options = WatchOptions(poll_wait_s=0.01, max_load_retries=retries, retry_interval_s=0.001)
    watcher = ModelWatcher(config, loader, options)
    watcher.start()
    assert watcher.wait_until_polled(WAIT_S)
    return watcher


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is said beside information, which tests before may have switched on."""
    return [record.getMessage() for record in caplog.records if record.levelname != "INFO"]


@contextmanager
def managed(*configs: ModelConfig, loader: Loader = load, allow_new_labels: bool = False) -> Iterator[ModelManager]:
    """A manager whose models were tried."""
    manager = ModelManager(configs, loader, WatchOptions(poll_wait_s=0.01), allow_new_labels=allow_new_labels)
    manager.start()
    try:
        assert manager.wait_until_polled(WAIT_S)
        yield manager
    finally:
        assert manager.stop()


def look(watcher: ModelWatcher) -> None:
    """Has the base path looked at once more, and waits for it."""
    watcher.look()
    assert watcher.wait_until_polled(WAIT_S)


def threads_of(watcher: ModelWatcher) -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == f"modelyard-watch-{watcher.config.name}"]


def graph_of(path: Location) -> Path:
    return Path(str(path)) / "onnx" / "serving_default.onnx"


def damage(path: Location) -> bytes:
    """Cuts a version's graph, and returns what it was."""
    graph = graph_of(path)
    whole = graph.read_bytes()
    graph.write_bytes(whole[:50])
    return whole


def served(watcher: ModelWatcher) -> list[int]:
    return [each.version for each in watcher.statuses() if each.state is VersionState.AVAILABLE]
