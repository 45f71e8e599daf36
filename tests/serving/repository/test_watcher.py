"""One model's watcher with loaders that fail in ways that files on disk do not."""

from __future__ import annotations

import gc
import re
import shutil
import threading
import time
import weakref
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from modelyard.artifact import LABELS_NAME, ModelVersion, write_labels
from modelyard.errors import InternalError, LoadError, ModelNotFoundError, ModelyardError
from modelyard.serving import (
    ModelConfig,
    ModelSpec,
    Servable,
    VersionPolicy,
    VersionState,
    WatchOptions,
)
from modelyard.serving.backends import NoRoomError
from modelyard.serving.repository import ModelWatcher
from tests.support.models import publish_affine
from tests.support.waiting import until
from tests.support.watching import Failing, damage, graph_of, load, look, served, watched

TIMEOUT_S = 60.0


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    return ModelConfig(name="m", base_path=tmp_path / "m")


def test_before_the_first_poll_the_reason_is_said(config: ModelConfig) -> None:
    assert ModelWatcher(config, load, WatchOptions()).failure() == "it is still loading"
    explicit = ModelWatcher(config, load, WatchOptions(explicit=True))
    assert explicit.failure() == "it is loaded on request only: POST /v2/repository/models/m/load"


def test_unexpected_failures_are_tried_again(config: ModelConfig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "modelyard.serving")
    started = time.perf_counter()
    loader = Failing(RuntimeError("the disk hiccuped"), failures=3)
    watcher = watched(config, loader)
    until(watcher.is_ready, TIMEOUT_S)
    assert (loader.calls, watcher.failure()) == (4, "")
    watcher.stop()
    assert [status.state for status in watcher.statuses()] == [VersionState.END]
    (seconds,) = re.findall(r"version 1 is AVAILABLE in onnxruntime after (\d+\.\d+) s", caplog.text)
    assert float(seconds) <= time.perf_counter() - started + 0.01


def test_a_damaged_labels_file_keeps_no_version_from_loading(config: ModelConfig) -> None:
    write_labels(config.base_path, {"stable": 1})
    watcher = watched(config, load)
    try:
        until(lambda: watcher.labels == {"stable": 1}, TIMEOUT_S)
        (config.base_path / LABELS_NAME).write_bytes(b"{")
        publish_affine(config.base_path, slope=2.0, intercept=0.0)
        until(lambda: watcher.is_available(2), TIMEOUT_S)
        assert watcher.labels == {"stable": 1}
        # What it named is served on.
        assert watcher.is_available(1)
    finally:
        watcher.stop()


def test_between_two_tries_there_is_the_interval(config: ModelConfig) -> None:
    calls: list[float] = []

    def loader(config: ModelConfig, version: int, path: Path) -> Servable:
        calls.append(time.monotonic())
        if len(calls) < 3:
            raise RuntimeError("the disk hiccuped")
        return load(config, version, path)

    watcher = ModelWatcher(config, loader, WatchOptions(poll_wait_s=0.01, max_load_retries=5, retry_interval_s=0.3))
    watcher.start()
    until(watcher.is_ready, TIMEOUT_S)
    watcher.stop()
    assert all(0.3 <= after - before for before, after in pairwise(calls))


def test_files_that_vanish_while_they_are_read_are_said_and_read_again(
    config: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """Of half a copy, or of a removal: each look is another try, without retries of loads that failed."""
    loader = Failing(FileNotFoundError(2, "No such file or directory", "graph.onnx"), failures=3)
    watcher = watched(config, loader, retries=0)
    until(watcher.is_ready, TIMEOUT_S)
    assert (loader.calls, watcher.failure()) == (4, "")
    watcher.stop()
    assert "1 could not be read: [Errno 2] No such file or directory: 'graph.onnx'" in caplog.text
    assert "unexpectedly" not in caplog.text


def test_a_version_without_room_is_tried_again(config: ModelConfig) -> None:
    loader = Failing(NoRoomError("1 has 1,000 bytes and 999 bytes of memory are left."), failures=2)
    watcher = watched(config, loader, retries=2)
    until(watcher.is_ready, TIMEOUT_S)
    assert (loader.calls, watcher.failure()) == (3, "")
    watcher.stop()


def test_after_the_last_try_the_version_ends(config: ModelConfig, caplog: pytest.LogCaptureFixture) -> None:
    loader = Failing(RuntimeError("the disk hiccuped"), failures=100)
    watcher = ModelWatcher(config, loader, WatchOptions(poll_wait_s=0.01, max_load_retries=2, retry_interval_s=0.0))
    watcher.start()
    until(lambda: loader.calls == 3, TIMEOUT_S)
    # The first may be the look that is under way.
    for _ in range(3):
        look(watcher)
    (status,) = watcher.statuses()
    assert (loader.calls, status.state) == (3, VersionState.END)
    assert isinstance(status.error, InternalError)
    # What an unknown error says is for the log alone.
    assert "the disk hiccuped" in caplog.text
    assert watcher.failure() == "version 1: Loading failed with RuntimeError. The server's log has the details."
    with pytest.raises(ModelNotFoundError, match="with RuntimeError. The server"), watcher.acquire(ModelSpec(name="m")):
        pass
    watcher.stop()


def test_failed_versions_keep_nothing_and_the_oldest_are_forgotten(config: ModelConfig, tmp_path: Path) -> None:
    """The frames of an error had held what was read of the model, and each version its place in every list."""
    read: list[weakref.ref[object]] = []

    def loader(config: ModelConfig, version: int, path: Path) -> Servable:
        content = type("Content", (), {})()
        read.append(weakref.ref(content))
        try:
            raise ValueError(f"no operator of {content}")
        except ValueError as exc:
            raise LoadError("it cannot be read") from exc

    def newest_is(number: int) -> bool:
        return watcher.statuses()[0].version == number

    watcher = watched(config, loader, retries=0)
    assert watcher.failure() == "version 1: it cannot be read"
    until(lambda: gc.collect() >= 0 and read[0]() is None, TIMEOUT_S)
    folder = tmp_path / "m"
    shutil.copytree(folder / "1", tmp_path / "source")
    for number in range(2, 106):
        shutil.copytree(tmp_path / "source", folder / "new")
        (folder / "new").rename(folder / str(number))
        until(partial(newest_is, number), TIMEOUT_S)
        shutil.rmtree(folder / str(number - 1))
    until(lambda: [status.version for status in watcher.statuses()] == list(range(105, 4, -1)), TIMEOUT_S)
    assert watcher.failure() == "version 105: it cannot be read"
    watcher.stop()


def test_no_newer_version_waits_for_one_that_is_tried_again(config: ModelConfig) -> None:
    def loader(config: ModelConfig, version: int, path: Path) -> Servable:
        if version == 1:
            raise RuntimeError("the disk hiccuped")
        return load(config, version, path)

    options = WatchOptions(poll_wait_s=0.01, max_load_retries=5, retry_interval_s=TIMEOUT_S)
    watcher = ModelWatcher(config, loader, options)
    watcher.start()
    assert watcher.wait_until_polled(TIMEOUT_S)
    assert watcher.failure().startswith("version 1: Loading failed with RuntimeError")
    publish_affine(config.base_path, slope=2.0, intercept=0.0)
    until(watcher.is_ready, TIMEOUT_S / 2)
    watcher.stop()


def test_a_model_whose_store_stalls_keeps_no_other_from_loading(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many versions load at the same time as there are slots; one that is being copied has none."""
    options = WatchOptions(poll_wait_s=0.01)
    stalled, other = ModelWatcher(config, load, options), ModelWatcher(config, load, options)
    gate, entered = threading.Event(), threading.Event()

    def stall(version: ModelVersion) -> Path:
        entered.set()
        gate.wait(TIMEOUT_S)
        return version.path

    monkeypatch.setattr(stalled._cache, "fetch", stall)
    stalled.start()
    assert entered.wait(TIMEOUT_S)
    other.start()
    until(other.is_ready, TIMEOUT_S / 2)
    assert not stalled.is_ready()
    gate.set()
    until(stalled.is_ready, TIMEOUT_S)
    for watcher in (stalled, other):
        watcher.stop()


def test_what_changes_while_it_is_loaded_is_not_served(config: ModelConfig) -> None:
    """As where it is copied file by file, or removed: of half of it nothing can be said."""
    calls = []

    def loader(config: ModelConfig, version: int, path: Path) -> Servable:
        calls.append(version)
        if len(calls) == 1:
            (path / "later").touch()
        return load(config, version, path)

    watcher = watched(config, loader)
    until(watcher.is_ready, TIMEOUT_S)
    assert calls == [1, 1]
    watcher.stop()


def test_files_that_do_not_suit_are_not_tried_again_until_they_change(config: ModelConfig) -> None:
    loader = Failing(LoadError("no runtime"), failures=1)
    watcher = watched(config, loader)
    for _ in range(3):
        watcher.configure(config)
        assert watcher.wait_until_polled(TIMEOUT_S)
    assert (loader.calls, watcher.is_ready()) == (1, False)
    assert isinstance(config.base_path, Path)
    (config.base_path / "1" / "touched").touch()
    watcher.configure(config)
    assert watcher.wait_until_polled(TIMEOUT_S)
    assert (loader.calls, watcher.is_ready()) == (2, True)
    watcher.stop()


def test_a_base_path_that_is_looked_at_once_is_looked_at_again_for_a_new_configuration(config: ModelConfig) -> None:
    watcher = ModelWatcher(config, load, WatchOptions(poll_wait_s=0))
    watcher.start()
    for number in range(2, 12):
        # Right after the start or long after the thread has ended: no change may be lost.
        publish_affine(config.base_path, slope=1.0, intercept=0.0)
        watcher.configure(
            ModelConfig(name="m", base_path=config.base_path, policy=VersionPolicy(specific=frozenset({number})))
        )
        assert watcher.wait_until_polled(TIMEOUT_S)
        assert watcher.is_available(number)
    watcher.stop()


def test_unloading_waits_for_the_last_request(config: ModelConfig) -> None:
    watcher = watched(config, load)
    with watcher.acquire(ModelSpec(name="m")) as servable:
        stopping = threading.Thread(target=watcher.stop)
        stopping.start()
        while watcher.statuses()[0].state is not VersionState.UNLOADING:
            pass
        with pytest.raises(ModelyardError), watcher.acquire(ModelSpec(name="m")):
            pass
        # What is lent can still compute.
        assert servable.backend.signatures.keys() == {"serving_default"}
        assert stopping.is_alive()
    stopping.join(TIMEOUT_S)
    assert watcher.statuses()[0].state is VersionState.END


def test_a_server_that_starts_serves_the_last_good_version(
    config: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [publish_affine(config.base_path, slope=slope, intercept=0.0).path for slope in (2.0, 3.0, 4.0)]
    damage(paths[1])
    whole = damage(paths[2])
    watcher = watched(config, load)
    try:
        assert (served(watcher), watcher.is_ready()) == ([2], True)
        with watcher.acquire(ModelSpec(name="m")) as servable:
            assert servable.version == 2
        assert [each.error is not None for each in watcher.statuses()] == [True, True, False]
        assert "version 2 is served until a newer one can be" in caplog.text
        assert "version 4: " in watcher.failure()
        # Not tried again at each look, and not given up for one that cannot be served either.
        number = len(caplog.records)
        watcher.look()
        assert watcher.wait_until_polled(TIMEOUT_S)
        assert (served(watcher), len(caplog.records)) == ([2], number)
        graph_of(paths[2]).write_bytes(whole)
        until(lambda: served(watcher) == [4], TIMEOUT_S, "the newest is repaired")
        assert watcher.failure() == ""
    finally:
        watcher.stop()


def test_what_was_asked_for_by_number_is_not_replaced(config: ModelConfig) -> None:
    damage(publish_affine(config.base_path, slope=2.0, intercept=0.0).path)
    only = replace(config, policy=VersionPolicy(specific=frozenset({2})))
    for each, options in (
        (only, WatchOptions(poll_wait_s=0.01)),
        (config, WatchOptions(poll_wait_s=0.01, resource_preserving=True)),
    ):
        watcher = ModelWatcher(each, load, options)
        watcher.start()
        try:
            assert watcher.wait_until_polled(TIMEOUT_S)
            assert served(watcher) == []
        finally:
            watcher.stop()
    explicit = ModelWatcher(config, load, WatchOptions(explicit=True))
    try:
        with pytest.raises(LoadError, match="version 2: "):
            explicit.enable()
        assert served(explicit) == []
    finally:
        explicit.stop()


def test_a_version_that_has_a_label_does_not_stand_in_for_a_newer_one(config: ModelConfig) -> None:
    publish_affine(config.base_path, slope=2.0, intercept=0.0)
    damage(publish_affine(config.base_path, slope=3.0, intercept=0.0).path)
    write_labels(config.base_path, {"stable": 1})
    watcher = watched(config, load)
    try:
        assert served(watcher) == [2, 1]
    finally:
        watcher.stop()
