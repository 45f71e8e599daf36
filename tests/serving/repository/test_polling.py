"""When a base path is looked at, what is tried again, and how a watcher ends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from modelyard.artifact import RemotePath
from modelyard.errors import LoadError, ModelNotFoundError, UnavailableError
from modelyard.serving import ModelConfig, ModelSpec, VersionState, WatchOptions
from modelyard.serving.repository import ModelWatcher
from tests.support.models import publish_affine
from tests.support.waiting import until
from tests.support.watching import WAIT_S, Failing, Gated, load, look, threads_of, warnings_of, watched

MODEL = ModelSpec(name="m")
ONCE: dict[str, Any] = {"poll_wait_s": 0, "retry_interval_s": 0.0}


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    return ModelConfig(name="m", base_path=tmp_path / "m")


def test_however_often_it_is_asked_to_look_a_model_has_one_thread(config: ModelConfig) -> None:
    for options in (WatchOptions(poll_wait_s=0.01), WatchOptions(**ONCE), WatchOptions(explicit=True)):
        gated = Gated()
        watcher = ModelWatcher(config, gated, options)
        watcher.start()
        for _ in range(3):
            watcher.look()
        if options.explicit:
            assert watcher.wait_until_polled(WAIT_S)
            assert gated.calls == []
        else:
            assert gated.entered.wait(WAIT_S)
            watcher.look()
            assert len(threads_of(watcher)) == 1
        gated.gate.set()
        assert watcher.stop()
        until(lambda watcher=watcher: not threads_of(watcher), WAIT_S)  # type: ignore[misc]


def test_the_thread_of_a_model_that_is_looked_at_once_ends(config: ModelConfig) -> None:
    loader = Failing(FileNotFoundError(2, "No such file or directory"), failures=1)
    watcher = ModelWatcher(config, loader, WatchOptions(**ONCE))
    watcher.start()
    until(lambda: not threads_of(watcher), WAIT_S)
    # What could not be read is read again at the next look, and there is none by itself.
    assert (loader.calls, watcher.is_ready()) == (1, False)
    look(watcher)
    assert (loader.calls, watcher.is_ready()) == (2, True)
    assert watcher.stop()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("the disk hiccuped")], ids=lambda error: str(error))
def test_what_fails_is_tried_again_where_the_model_is_looked_at_once(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("modelyard.serving.repository._watcher._RETRY_S", 0.01)
    loader = Failing(error, failures=2)
    watcher = ModelWatcher(config, loader, WatchOptions(**ONCE))
    watcher.start()
    until(watcher.is_ready, WAIT_S)
    assert loader.calls == 3
    until(lambda: not threads_of(watcher), WAIT_S)
    assert watcher.stop()


def test_the_wait_between_two_looks_is_that_of_the_options(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelyard.serving.repository._watcher._RETRY_S", 10 * WAIT_S)
    watcher = watched(config)
    publish_affine(config.base_path, slope=2.0, intercept=0.0)
    until(lambda: watcher.is_available(2), WAIT_S)
    assert watcher.stop()


def test_a_base_path_that_is_never_looked_at(config: ModelConfig) -> None:
    watcher = ModelWatcher(config, load, WatchOptions(poll_wait_s=-1))
    watcher.start()
    for _ in range(2):
        assert watcher.wait_until_polled(0.0)
        assert (watcher.loaded(), threads_of(watcher)) == ([], [])
        why = "its base path is never polled: --file_system_poll_wait_seconds is negative"
        assert watcher.failure() == why
        with pytest.raises(ModelNotFoundError, match=why), watcher.acquire(MODEL):
            pass
        watcher.look()
    assert watcher.stop()


def test_requests_to_a_model_that_is_loaded_on_request(config: ModelConfig) -> None:
    gated = Gated()
    watcher = ModelWatcher(config, gated, WatchOptions(explicit=True))
    watcher.start()
    for _ in range(2):
        with pytest.raises(ModelNotFoundError, match="nothing is loaded: it is loaded on request only"):
            watcher.lend(MODEL)
        assert (watcher.enabled, watcher.is_settled()) == (False, False)
        look(watcher)
    loading = threading.Thread(target=watcher.enable)
    loading.start()
    assert gated.entered.wait(WAIT_S)
    with pytest.raises(UnavailableError, match="is still loading"):
        watcher.lend(MODEL)
    assert (watcher.enabled, watcher.is_settled()) == (True, False)
    gated.gate.set()
    loading.join(WAIT_S)
    assert (watcher.is_settled(), watcher.failure()) == (True, "")
    watcher.disable()
    assert (watcher.enabled, watcher.loaded()) == (False, [])
    assert watcher.failure() == "it is loaded on request only: POST /v2/repository/models/m/load"
    assert watcher.stop()


def test_each_load_on_request_is_a_first_try(config: ModelConfig) -> None:
    """Neither the interval nor the number of tries before is its caller's concern."""
    loader = Failing(RuntimeError("the disk hiccuped"), failures=100)
    options = WatchOptions(explicit=True, max_load_retries=1, retry_interval_s=WAIT_S)
    watcher = ModelWatcher(config, loader, options)
    watcher.start()
    for number in range(1, 5):
        with pytest.raises(LoadError, match="Model 'm' cannot be loaded: version 1: Loading failed with RuntimeError"):
            watcher.enable()
        assert loader.calls == number
    assert watcher.stop()


def test_a_look_that_fails_unexpectedly_is_not_the_last(config: ModelConfig, caplog: pytest.LogCaptureFixture) -> None:
    def moved(name: str) -> None:
        told.append(name)
        if len(told) == 1:
            raise RuntimeError("whoever is told has a fault")

    told = list[str]()
    watcher = ModelWatcher(config, load, WatchOptions(poll_wait_s=0.01), moved)
    watcher.start()
    assert watcher.wait_until_polled(WAIT_S)
    publish_affine(config.base_path, slope=2.0, intercept=0.0)
    until(lambda: told == ["m", "m"], WAIT_S)
    assert "model m: looking for versions failed unexpectedly; trying again" in caplog.text
    assert watcher.stop()


def test_the_end_waits_for_what_is_being_loaded(config: ModelConfig, caplog: pytest.LogCaptureFixture) -> None:
    gated = Gated()
    watcher = ModelWatcher(config, gated, WatchOptions(poll_wait_s=0.01))
    watcher.start()
    assert gated.entered.wait(WAIT_S)
    answers = list[bool]()
    waiting = threading.Thread(target=lambda: answers.append(watcher.wait_until_polled(10 * WAIT_S)))
    waiting.start()
    stopping = threading.Thread(target=lambda: answers.append(watcher.stop()))
    stopping.start()
    # Who waits for the first look does not wait for one that never comes.
    waiting.join(WAIT_S)
    assert answers == [False]
    assert not watcher.stop(0.0)
    assert warnings_of(caplog) == ["model m: not waiting any longer for a version that is being loaded"]
    stopping.join(0.05)
    assert stopping.is_alive()
    gated.gate.set()
    stopping.join(WAIT_S)
    assert (answers, watcher.loaded(), len(warnings_of(caplog))) == ([False, True], [], 1)
    assert [each.state for each in watcher.statuses()] == [VersionState.END]


def test_a_copy_of_what_is_not_served_any_more_is_removed(store: RemotePath, tmp_path: Path) -> None:
    options = WatchOptions(poll_wait_s=0.01, cache_dir=tmp_path / "cache")
    watcher = ModelWatcher(ModelConfig(name="m", base_path=store), load, options)
    watcher.start()
    until(lambda: watcher.is_available(1), WAIT_S)
    publish_affine(store, slope=2.0, intercept=0.0)
    until(lambda: [path.name for path in tmp_path.glob("cache/m/*/*")] == ["2"], WAIT_S)
    assert watcher.stop()


def test_a_copy_that_found_no_room_is_made_later(store: RemotePath, tmp_path: Path) -> None:
    """Nothing changed in the store: it is tried again because what kept it out is here."""
    (tmp_path / "cache").touch()
    options = WatchOptions(
        poll_wait_s=0.01, retry_interval_s=0.01, max_load_retries=100_000, cache_dir=tmp_path / "cache"
    )
    watcher = ModelWatcher(ModelConfig(name="m", base_path=store), load, options)
    watcher.start()
    assert watcher.wait_until_polled(WAIT_S)
    assert "cannot be copied to this machine" in watcher.failure()
    (tmp_path / "cache").unlink()
    until(watcher.is_ready, WAIT_S)
    assert watcher.stop()
