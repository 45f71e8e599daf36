"""Models that come, change and go while the server runs, and how long anybody waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from modelyard.errors import ModelNotFoundError, ServerError
from modelyard.serving import ModelConfig, ModelSpec, VersionPolicy, WatchOptions
from modelyard.serving.repository import ModelManager, Version
from tests.support.models import publish_affine
from tests.support.waiting import until
from tests.support.watching import WAIT_S, Gated, damage, load, managed

#: How long is waited for what does not happen: longer than a second, which is what a quotient of two times is.
IN_VAIN_S = 1.1


def model(folder: Path, name: str) -> ModelConfig:
    publish_affine(folder / name, slope=1.0, intercept=0.0)
    return ModelConfig(name=name, base_path=folder / name)


def test_a_reload_returns_when_all_is_done(tmp_path: Path) -> None:
    old, kept, new = (model(tmp_path, name) for name in ("old", "kept", "new"))
    with managed(old, kept) as manager:
        manager.reload([kept, new], timeout_s=WAIT_S)
        assert manager.names == ("kept", "new")
        assert [manager.ready(name) for name in ("old", "kept", "new")] == [False, True, True]
        assert sorted(each.name for each in manager.loaded()) == ["kept", "new"]
        manager.reload([replace(kept, base_path=tmp_path / "old"), new], timeout_s=WAIT_S)
        assert [each.path.parent.name for each in manager.loaded()] == ["old", "new"]


def test_a_reload_that_nobody_waits_for_only_begins(tmp_path: Path) -> None:
    gated = Gated()
    manager = ModelManager([], gated, WatchOptions(poll_wait_s=0.01))
    manager.start()
    manager.reload([model(tmp_path, "m")], timeout_s=0.0)
    assert gated.entered.wait(WAIT_S)
    assert (manager.names, manager.loaded()) == (("m",), [])
    gated.gate.set()
    assert manager.wait_until_polled(WAIT_S)
    assert manager.ready("m")
    assert manager.stop()


def test_a_reload_says_which_new_base_paths_have_nothing_to_serve(tmp_path: Path) -> None:
    configs = {name: model(tmp_path, name) for name in ("a", "m", "z")}
    for name in ("a", "z"):
        damage(tmp_path / name / "1")
    with managed(configs["m"]) as manager:
        for name in ("a", "z"):
            with pytest.raises(ServerError, match=r"^1 servable\(s\) did not become available: {{m: version 1: "):
                manager.reload([replace(configs["m"], base_path=tmp_path / name)], timeout_s=WAIT_S)
        with pytest.raises(ServerError, match=r"^2 servable.*{{a: version 1: .*}, {z: version 1: "):
            manager.reload(list(configs.values()), timeout_s=WAIT_S)
        # What was served before is served on, and its base path is none of the new ones.
        (tmp_path / "m" / "2").mkdir()
        again = [replace(configs["m"], policy=VersionPolicy(latest=2))]
        manager.reload(again, timeout_s=WAIT_S)
        assert "holds no model" in str(manager.status("m", 2)[0].error)
        assert manager.ready("m")


def test_who_keeps_something_by_model_is_told(tmp_path: Path) -> None:
    configured, gone = list[str](), list[str]()
    one, two, three = (model(tmp_path, name) for name in ("one", "two", "three"))
    with managed(one, two) as manager:
        manager.when_configured(configured.append)
        manager.when_gone(gone.append)
        manager.reload([replace(one, policy=VersionPolicy(latest=2)), three], timeout_s=WAIT_S)
        assert (configured, gone) == (["one", "two"], ["two"])
        # One that has come back before it was gone is not.
        watcher = manager.watcher(ModelSpec(name="three"))
        held = watcher.lend(ModelSpec(name="three"))
        manager.reload([one, two], timeout_s=0.0)
        manager.reload([one, two, three], timeout_s=WAIT_S)
        watcher.give_back(held)
        until(lambda: not watcher.loaded(), WAIT_S)
        manager.reload([two, three], timeout_s=WAIT_S)
        assert gone == ["two", "one"]
        assert configured == ["one", "two", "one", "three", "one"]


def test_a_server_that_has_stopped_takes_no_models(tmp_path: Path) -> None:
    config = model(tmp_path, "m")
    with managed() as manager:
        pass
    manager.reload([config], timeout_s=WAIT_S)
    assert manager.names == ()
    with pytest.raises(ModelNotFoundError):
        manager.watcher(ModelSpec(name="m"))


def held(manager: ModelManager, names: tuple[str, ...]) -> Callable[[], None]:
    """Holds a version of each model; returns what gives them back."""
    versions = list[tuple[str, Version]]()
    watchers = {name: manager.watcher(ModelSpec(name=name)) for name in names}
    for name, watcher in watchers.items():
        versions.append((name, watcher.lend(ModelSpec(name=name))))

    def give_back() -> None:
        for name, version in versions:
            watchers[name].give_back(version)

    return give_back


def test_what_does_not_happen_is_waited_for_as_long_as_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not shorter, and not for ever: all at the same time here."""
    monkeypatch.setattr("modelyard.serving.repository._manager._STOP_S", IN_VAIN_S)
    configs = [model(tmp_path, name) for name in ("one", "two")]
    gated = Gated()
    loading, leaving, stopping, alone = (
        ModelManager(configs, loader, WatchOptions(poll_wait_s=0.01)) for loader in (gated, load, load, load)
    )
    threads = set(threading.enumerate())
    for manager in (loading, leaving, stopping, alone):
        manager.start()
    for manager in (leaving, stopping, alone):
        assert manager.wait_until_polled(WAIT_S)
    assert gated.entered.wait(WAIT_S)
    give_back = [held(manager, ("one", "two")) for manager in (leaving, stopping, alone)]
    added = ModelConfig(name="added", base_path=tmp_path / "one")
    watcher = alone.watcher(ModelSpec(name="one"))

    def reload() -> str:
        with pytest.raises(ServerError) as caught:
            loading.reload([*configs, added], timeout_s=IN_VAIN_S)
        return caught.value.message

    waits: dict[Callable[[], object], object] = {
        lambda: loading.wait_until_polled(IN_VAIN_S): False,
        reload: "1 servable(s) did not become available: {{added: it is still loading}}",
        lambda: leaving.reload([], timeout_s=IN_VAIN_S): None,
        stopping.stop: False,
        lambda: watcher.stop(IN_VAIN_S): False,
    }

    def timed(wait: Callable[[], object]) -> tuple[object, float]:
        began = time.monotonic()
        return wait(), time.monotonic() - began

    with ThreadPoolExecutor(len(waits)) as pool:
        try:
            answers = [pool.submit(timed, wait) for wait in waits]
            for answer, expected in zip(answers, waits.values(), strict=True):
                returned, seconds = answer.result(WAIT_S / 2)
                assert (returned, seconds >= IN_VAIN_S) == (expected, True), seconds
            # None of them would keep a process from ending.
            beside = set(threading.enumerate()) - threads - set(pool._threads)
            assert beside and all(thread.daemon for thread in beside)
        finally:
            gated.gate.set()
            for each in give_back:
                each()
    # What was given up stays until the process ends.
    assert [manager.stop() for manager in (loading, leaving, stopping, alone)] == [True, True, False, False]
