"""Versions that take the place of others, models that leave, and what stays of them: nothing."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from modelyard.artifact import RemotePath
from modelyard.errors import LoadError, UnavailableError
from modelyard.serving import ModelConfig, ModelSpec, Servable, VersionState, WatchOptions
from modelyard.serving.repository import Admin, ModelManager, ModelWatcher, Version
from tests.support.models import publish_affine
from tests.support.waiting import until
from tests.support.watching import WAIT_S, load, look, watched

MODEL = ModelSpec(name="m")


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    publish_affine(tmp_path / "other", slope=2.0, intercept=0.0)
    return ModelConfig(name="m", base_path=tmp_path / "m")


def test_a_failed_replacement_leaves_no_mark_on_the_good_version(config: ModelConfig, tmp_path: Path) -> None:
    graph = tmp_path / "other" / "1" / "onnx" / "serving_default.onnx"
    graph.write_bytes(graph.read_bytes()[:50])
    watcher = ModelWatcher(config, load, WatchOptions(explicit=True))
    watcher.enable()
    watcher.configure(replace(config, base_path=tmp_path / "other"))
    assert watcher.wait_until_polled(WAIT_S)
    assert "version 1: " in watcher.failure()
    # Back to what it still serves, and then out and in again.
    watcher.configure(config)
    assert watcher.wait_until_polled(WAIT_S)
    assert watcher.failure() == ""
    watcher.configure(replace(config, base_path=tmp_path / "other"))
    assert watcher.wait_until_polled(WAIT_S)
    watcher.disable()
    watcher.configure(config)
    watcher.enable()
    assert watcher.is_ready()
    assert watcher.stop()


def replaced(config: ModelConfig, tmp_path: Path) -> tuple[ModelWatcher, Version]:
    """A model whose version was replaced while a request holds it."""
    watcher = ModelWatcher(config, load, WatchOptions(poll_wait_s=0.01))
    watcher.start()
    assert watcher.wait_until_polled(WAIT_S)
    first = watcher.lend(MODEL)
    watcher.configure(replace(config, base_path=tmp_path / "other"))
    until(lambda: len(watcher.loaded()) == 2, WAIT_S, "loading the new version")
    return watcher, first


def test_a_replaced_version_that_still_computes_is_seen(config: ModelConfig, tmp_path: Path) -> None:
    """Its batch may never end: then it is suspended as any other, and its model goes on being polled."""
    watcher, first = replaced(config, tmp_path)
    watcher.suspend(first.loaded, UnavailableError("it takes too long"))
    publish_affine(tmp_path / "other", slope=3.0, intercept=0.0)
    until(lambda: watcher.is_available(2), WAIT_S, "polling again")
    ended = first.loaded
    watcher.give_back(first)
    watcher.resume(ended)
    until(lambda: ended not in watcher.loaded(), WAIT_S, "unloading what it replaced")
    assert watcher.stop()


def test_who_resumes_a_version_does_not_wait_for_its_other_requests(
    config: ModelConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the watchdog: the next batch that hangs may be one of them, and nobody else would notice."""
    unloaded = "model m version 1 is unloaded"
    caplog.set_level("INFO", "modelyard.serving")
    watcher, first = replaced(config, tmp_path)
    servable = first.loaded
    watcher.suspend(servable, UnavailableError("it takes too long"))
    publish_affine(tmp_path / "other", slope=3.0, intercept=0.0)
    until(lambda: watcher.is_available(2), WAIT_S, "polling again")
    # What replaced it has its number, and is replaced, too.
    until(lambda: unloaded in caplog.messages, WAIT_S, "unloading the other version 1")
    caplog.clear()
    watcher.resume(servable)
    assert servable in watcher.loaded()
    # As before: it is seen, and can be suspended once more.
    watcher.suspend(servable, UnavailableError("it takes too long"))
    watcher.resume(servable)
    watcher.give_back(first)
    until(lambda: servable not in watcher.loaded(), WAIT_S, "unloading what it replaced")
    for thread in threading.enumerate():
        if thread.name == "modelyard-unload":
            thread.join(WAIT_S)
    # Two threads were to do it.
    assert caplog.messages.count(unloaded) == 1
    assert watcher.stop()


def test_a_replaced_version_goes_though_its_number_is_served(config: ModelConfig, tmp_path: Path) -> None:
    watcher, first = replaced(config, tmp_path)
    old = first.loaded
    watcher.suspend(old, UnavailableError("it takes too long"))
    assert watcher.is_ready()
    look(watcher)
    watcher.give_back(first)
    watcher.resume(old)
    until(lambda: old not in watcher.loaded(), WAIT_S, "unloading what was replaced")
    assert (len(watcher.loaded()), watcher.is_ready()) == (1, True)
    assert watcher.stop()


def test_one_replaced_version_does_not_take_another_with_it(config: ModelConfig, tmp_path: Path) -> None:
    watcher, first = replaced(config, tmp_path)
    old, second = first.loaded, watcher.lend(MODEL)
    watcher.suspend(old, UnavailableError("it takes too long"))
    watcher.configure(config)
    until(lambda: len(watcher.loaded()) == 3, WAIT_S, "replacing the second version")
    watcher.give_back(first)
    watcher.resume(old)
    until(lambda: old not in watcher.loaded(), WAIT_S, "unloading the first version")
    assert second.loaded in watcher.loaded()
    watcher.give_back(second)
    until(lambda: len(watcher.loaded()) == 1, WAIT_S, "unloading the second version")
    assert watcher.stop()


@pytest.mark.parametrize("stops", [True, False], ids=["stops", "is replaced"])
def test_a_version_whose_batch_hung_goes_when_that_ends(config: ModelConfig, stops: bool) -> None:
    """Where it is not needed any more: a newer one is there, or the server ends."""
    watcher = watched(config)
    version = watcher.lend(MODEL)
    servable = version.loaded
    watcher.suspend(servable, UnavailableError("it takes too long"))
    if stops:
        assert not watcher.stop(0.0)
    else:
        publish_affine(config.base_path, slope=3.0, intercept=0.0)
        until(lambda: watcher.is_available(2), WAIT_S, "loading a newer one")
    assert servable in watcher.loaded()
    watcher.give_back(version)
    watcher.resume(servable)
    until(lambda: servable not in watcher.loaded(), WAIT_S, "unloading it")
    assert watcher.stop()


def test_a_replaced_version_is_given_up_with_its_model(config: ModelConfig, tmp_path: Path) -> None:
    watcher, first = replaced(config, tmp_path)
    assert not watcher.stop(0.1)
    watcher.give_back(first)
    until(lambda: not watcher.loaded(), WAIT_S, "unloading both")


def test_a_look_while_a_version_loads_is_not_lost(config: ModelConfig) -> None:
    """A base path that is polled once, and again where somebody asks for it."""
    entered, gate = threading.Event(), threading.Event()

    def slow(config: ModelConfig, version: int, path: Path) -> Servable:
        if version == 1:
            entered.set()
            assert gate.wait(WAIT_S)
        return load(config, version, path)

    watcher = ModelWatcher(config, slow, WatchOptions(poll_wait_s=0))
    watcher.start()
    assert entered.wait(WAIT_S)
    publish_affine(config.base_path, slope=2.0, intercept=0.0)
    watcher.look()
    gate.set()
    until(lambda: watcher.is_available(2), WAIT_S, "looking again")
    assert watcher.stop()


def test_old_versions_are_forgotten(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelyard.serving.repository._table._KEPT_ENDED", 2)
    watcher = ModelWatcher(config, load, WatchOptions(poll_wait_s=0.01))
    watcher.start()
    for number in range(2, 7):
        publish_affine(config.base_path, slope=1.0, intercept=0.0)
        until(lambda number=number: watcher.is_available(number), WAIT_S)  # type: ignore[misc]
    until(lambda: [each.version for each in watcher.statuses()] == [6, 5, 4], WAIT_S)
    assert [each.state for each in watcher.statuses()][1:] == [VersionState.END, VersionState.END]
    assert watcher.stop()


def test_one_model_that_cannot_be_unloaded_yet_keeps_no_other_from_loading(config: ModelConfig, tmp_path: Path) -> None:
    other = ModelConfig(name="other", base_path=tmp_path / "other")
    manager = ModelManager([config, other], load, WatchOptions(explicit=True))
    manager.start()
    admin = Admin(manager)

    async def change() -> None:
        await admin.load("m")
        with manager.acquire(MODEL):
            unloading = asyncio.create_task(admin.unload("m"))
            async with asyncio.timeout(WAIT_S):
                await admin.load("other")
            assert manager.ready("other") and not unloading.done()
        await unloading
        assert not manager.ready("m")

    asyncio.run(change())
    assert manager.stop()


@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "stops"])
def test_a_model_that_leaves_takes_its_copies_with_it(store: RemotePath, tmp_path: Path, leaves: bool) -> None:
    config = ModelConfig(name="m", base_path=store)
    manager = ModelManager([config], load, WatchOptions(poll_wait_s=0.01, cache_dir=tmp_path / "cache"))
    manager.start()
    until(lambda: manager.ready("m"), WAIT_S)
    if leaves:
        manager.reload([], timeout_s=WAIT_S)
    assert manager.stop()
    # A server that starts again needs no second download.
    assert bool(list(tmp_path.glob("cache/m/*/*"))) is not leaves


def test_what_is_put_there_again_keeps_its_copy(store: RemotePath, tmp_path: Path) -> None:
    watcher = ModelWatcher(
        ModelConfig(name="m", base_path=store), load, WatchOptions(explicit=True, cache_dir=tmp_path / "cache")
    )
    watcher.enable()
    (first,), (copy,) = watcher.loaded(), tmp_path.glob("cache/m/*/*")
    watcher.enable()
    assert watcher.loaded() == [first]
    file = store / "1" / "manifest.json"
    file.write_bytes(file.read_bytes())
    watcher.enable()
    (second,) = watcher.loaded()
    assert (second is not first, second.path, copy.is_dir()) == (True, copy, True)
    watcher.disable()
    assert not copy.exists()
    assert watcher.stop()


def test_a_copy_that_cannot_be_loaded_is_removed(store: RemotePath, tmp_path: Path) -> None:
    def refuse(config: ModelConfig, version: int, path: Path) -> Servable:
        raise LoadError(f"no runtime for {path.name}")

    options = WatchOptions(poll_wait_s=0.01, cache_dir=tmp_path / "cache")
    watcher = ModelWatcher(ModelConfig(name="m", base_path=store), refuse, options)
    watcher.start()
    assert watcher.wait_until_polled(WAIT_S)
    assert "no runtime for 1" in watcher.failure()
    assert not list(tmp_path.glob("cache/m/*/*"))
    assert watcher.stop()
