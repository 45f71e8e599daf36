"""Which versions are loaded, which stay, and which of them answers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modelyard.artifact import Location, write_labels
from modelyard.errors import InvalidModelSpecError, LoadError, ModelNotFoundError, ModelyardError, UnavailableError
from modelyard.serving import ModelConfig, ModelSpec, Servable, VersionPolicy, VersionState, WatchOptions
from modelyard.serving.repository import ModelWatcher
from tests.support.models import publish_affine
from tests.support.waiting import until
from tests.support.watching import WAIT_S, Failing, Gated, Loader, damage, load, look, served, warnings_of

ALL = VersionPolicy(latest=None)


def publish(folder: Location, *numbers: int) -> None:
    for number in numbers:
        assert publish_affine(folder, slope=1.0, intercept=0.0).number == number


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    return ModelConfig(name="m", base_path=tmp_path / "m")


@contextmanager
def watching(config: ModelConfig, loader: Loader = load, **options: Any) -> Iterator[ModelWatcher]:
    """A watcher that looks when it is told to, and has looked once."""
    watcher = ModelWatcher(config, loader, WatchOptions(**{"poll_wait_s": 10 * WAIT_S, **options}))
    watcher.start()
    try:
        assert watcher.wait_until_polled(WAIT_S)
        yield watcher
    finally:
        assert watcher.stop()


def counting(calls: list[int]) -> Loader:
    def loader(config: ModelConfig, version: int, path: Path) -> Servable:
        calls.append(version)
        return load(config, version, path)

    return loader


def asked(watcher: ModelWatcher, **spec: Any) -> int:
    """The version that answers."""
    with watcher.acquire(ModelSpec(name="m", **spec)) as servable:
        return servable.version


def refused(watcher: ModelWatcher, **spec: Any) -> tuple[type[ModelyardError], str]:
    with pytest.raises(ModelyardError) as caught:
        watcher.lend(ModelSpec(name="m", **spec))
    return type(caught.value), caught.value.message


def test_nothing_is_said_of_what_is_as_it_should_be(config: ModelConfig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "modelyard.serving")
    publish(config.base_path, 1, 2)
    write_labels(config.base_path, {"stable": 1, "new": 2})
    with watching(replace(config, labels={"new": 2})) as watcher:
        assert watcher.labels == {"stable": 1, "new": 2}
        write_labels(config.base_path, {})
        watcher.configure(config)
        look(watcher)
        assert watcher.labels == {}
    assert warnings_of(caplog) == []
    said = [message for message in caplog.messages if "labels in force" in message]
    assert said == ["model m: labels in force: {'stable': 1, 'new': 2}", "model m: labels in force: none"]


def test_labels_that_cannot_be_as_they_are_wanted_are_told(
    config: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    publish(config.base_path, 1, 2)
    write_labels(config.base_path, {"up": 2, "down": 1, "same": 2})
    with watching(replace(config, labels={"up": 1, "down": 2, "same": 2})) as watcher:
        assert watcher.labels == {"up": 1, "down": 2, "same": 2}
        look(watcher)
    dangling = (
        "model m: version_labels name versions that are not loaded: 'up' (version 1); requests by such a label are "
        "refused. Move the label, or have model_version_policy load its version."
    )
    assert warnings_of(caplog) == ["model m: the model config wins over labels.json for the labels down, up", dangling]


def test_who_asked_is_told_once_that_a_label_has_moved(config: ModelConfig) -> None:
    publish(config.base_path, 1, 2)
    write_labels(config.base_path, {"stable": 1})
    told = list[str]()
    watcher = ModelWatcher(config, load, WatchOptions(explicit=True), told.append)
    watcher.enable()
    # Two versions, and the label.
    assert told == ["m", "m", "m"]
    look(watcher)
    assert len(told) == 3
    write_labels(config.base_path, {"stable": 2})
    look(watcher)
    # At once, not at the next look: version 1 is not needed any more.
    assert (len(told), watcher.labels, served(watcher)) == (4, {"stable": 2}, [2])
    assert watcher.stop()


def test_a_label_ends_with_its_version(config: ModelConfig) -> None:
    publish(config.base_path, 1, 2)
    write_labels(config.base_path, {"stable": 1})
    with watching(config) as watcher:
        assert asked(watcher, label="stable") == 1
        shutil.rmtree(Path(str(config.base_path)) / "1")
        look(watcher)
        assert (watcher.labels, served(watcher)) == ({}, [2])
        kind, message = refused(watcher, label="stable")
        assert (kind, "gives it to version 1, which is not available" in message) == (InvalidModelSpecError, True)


def test_base_paths_that_hold_nothing(config: ModelConfig, tmp_path: Path) -> None:
    with watching(config) as watcher:
        assert watcher.failure() == "base path m cannot be read: No such file or directory"
        assert isinstance(config.base_path, Path)
        config.base_path.touch()
        look(watcher)
        assert watcher.failure().startswith("base path m is a file; expected a folder: move it to ")
        config.base_path.unlink()
        config.base_path.mkdir()
        look(watcher)
        assert watcher.failure() == "no version in m yet"
        nothing = "Servable not found for request: Latest(m); nothing is loaded: no version in m yet"
        assert refused(watcher) == (ModelNotFoundError, nothing)
        (config.base_path / "model.onnx").touch()
        look(watcher)
        assert "holds a model's files, not versions" in watcher.failure()
        (config.base_path / "model.onnx").unlink()
        publish(config.base_path, 1)
        look(watcher)
        assert (watcher.failure(), served(watcher)) == ("", [1])
        watcher.configure(replace(config, policy=VersionPolicy(specific=frozenset({7}))))
        assert watcher.wait_until_polled(WAIT_S)
        assert (watcher.failure(), served(watcher)) == ("no version is aspired", [])
        assert refused(watcher, version=7)[1].endswith("Specific(m, 7); nothing is loaded: no version in m")


def test_what_answers_while_an_older_version_is_loaded(config: ModelConfig) -> None:
    publish(config.base_path, 1, 2, 3)
    write_labels(config.base_path, {"stable": 3})
    gated = Gated(2)
    watcher = ModelWatcher(replace(config, policy=VersionPolicy(latest=2)), gated, WatchOptions(poll_wait_s=0.01))
    watcher.start()
    assert gated.entered.wait(WAIT_S)
    loading = "Model 'm' is still loading; try again in a moment."
    assert served(watcher) == [3]
    assert asked(watcher) == 3
    assert refused(watcher, version=2) == (UnavailableError, loading)
    assert refused(watcher, version=1)[1].endswith("Specific(m, 1); loaded versions: [3].")
    # Labels of the file are known when all versions are.
    assert refused(watcher, label="stable") == (UnavailableError, loading)
    unknown = "Unrecognized servable version label: other; model 'm' has no labels."
    assert refused(watcher, label="other") == (InvalidModelSpecError, unknown)
    # As ready as the version that most requests are sent to.
    for default, ready in ((None, True), (3, True), (2, False)):
        watcher.prefer(None if default is None else ModelSpec(name="m", version=default), frozenset())
        assert (watcher.is_ready(), watcher.is_suspended()) == (ready, False)
    watcher.prefer(None, frozenset())
    gated.gate.set()
    assert watcher.wait_until_polled(WAIT_S)
    assert asked(watcher, label="stable") == 3
    unknown = "Unrecognized servable version label: other; model 'm' has stable."
    assert refused(watcher, label="other") == (InvalidModelSpecError, unknown)
    # Once all were tried, any that can answer will do.
    watcher.prefer(ModelSpec(name="m", version=9), frozenset())
    assert watcher.is_ready()
    assert watcher.stop()


def test_before_any_version_is_loaded_a_label_is_waited_for(config: ModelConfig) -> None:
    publish(config.base_path, 1)
    gated = Gated()
    watcher = ModelWatcher(replace(config, labels={"stable": 1}), gated, WatchOptions(poll_wait_s=0.01))
    watcher.start()
    assert gated.entered.wait(WAIT_S)
    for spec in ({}, {"version": 1}, {"label": "stable"}, {"label": "other"}):
        assert refused(watcher, **spec)[0] is UnavailableError
    gated.gate.set()
    assert watcher.wait_until_polled(WAIT_S)
    assert watcher.stop()


def test_a_version_that_is_to_be_kept_is_loaded_and_unloaded_at_once(config: ModelConfig) -> None:
    publish(config.base_path, 1, 2, 3)
    with watching(config) as watcher:
        assert served(watcher) == [3]
        for keep, expected in (({1}, [3, 1]), ({2}, [3, 2]), ({1, 2}, [3, 2, 1]), (set[int](), [3])):
            watcher.prefer(None, frozenset(keep))
            until(lambda expected=expected: served(watcher) == expected, WAIT_S)  # type: ignore[misc]


def test_a_version_stays_until_a_newer_one_than_those_with_labels_is_loaded(config: ModelConfig) -> None:
    publish(config.base_path, 1, 2)
    # A label whose version is not there is not in the way.
    write_labels(config.base_path, {"stable": 1, "ahead": 9})
    calls = list[int]()
    with watching(config, counting(calls)) as watcher:
        publish(config.base_path, 3)
        damage(Path(str(config.base_path)) / "3")
        for _ in range(2):
            look(watcher)
            assert (served(watcher), calls) == ([2, 1], [2, 1, 3])
        assert watcher.labels == {"stable": 1}


def test_a_swap_for_a_label_alone_leaves_no_gap(config: ModelConfig, caplog: pytest.LogCaptureFixture) -> None:
    publish(config.base_path, 1, 2)
    with watching(config) as watcher:
        write_labels(config.base_path, {"stable": 1})
        caplog.set_level("INFO", "modelyard.serving")
        watcher.configure(replace(config, policy=VersionPolicy(specific=frozenset({7}))))
        assert watcher.wait_until_polled(WAIT_S)
        assert served(watcher) == [1]
    loaded, unloaded = (
        next(index for index, message in enumerate(caplog.messages) if text in message)
        for text in ("version 1 is AVAILABLE", "version 2 is unloaded")
    )
    assert loaded < unloaded


@pytest.mark.parametrize(
    ("labels", "damaged", "expected", "tried"),
    [
        # The last good one is loaded, once, beside what has a label.
        ({"stable": 1}, {3}, [2, 1], [3, 1, 2]),
        # A label of a version that cannot be loaded changes nothing about that.
        ({"stable": 1}, {1, 3}, [2], [3, 1, 2]),
        # What has a label is newer than what else there is.
        ({"stable": 2}, {3}, [2], [3, 2]),
        # None is good: each is tried once.
        ({}, {1, 2, 3}, [], [3, 2, 1]),
    ],
)
def test_the_last_good_version(
    config: ModelConfig, labels: dict[str, int], damaged: set[int], expected: list[int], tried: list[int]
) -> None:
    publish(config.base_path, 1, 2, 3)
    write_labels(config.base_path, labels)
    for number in damaged:
        damage(Path(str(config.base_path)) / str(number))
    calls = list[int]()
    with watching(config, counting(calls)) as watcher:
        for _ in range(2):
            assert (served(watcher), calls) == (expected, tried)
            look(watcher)


@pytest.mark.parametrize("other", ["a", "z"])
def test_a_base_path_with_nothing_better_changes_nothing(config: ModelConfig, tmp_path: Path, other: str) -> None:
    publish(config.base_path, 1, 2)
    publish(tmp_path / other, 1, 2)
    damage(tmp_path / other / "2")
    calls = list[int]()
    with watching(config, counting(calls)) as watcher:
        watcher.configure(replace(config, base_path=tmp_path / other))
        for _ in range(2):
            assert watcher.wait_until_polled(WAIT_S)
            assert (served(watcher), calls) == ([2], [2, 2])
            (only,) = watcher.loaded()
            assert only.path == Path(str(config.base_path)) / "2"
            assert watcher.failure().startswith("version 2: ")
            watcher.look()


@pytest.mark.parametrize("other", ["a", "z"])
def test_a_version_of_another_base_path_takes_the_place_of_its_number(
    config: ModelConfig, tmp_path: Path, other: str
) -> None:
    publish(config.base_path, 1)
    publish(tmp_path / other, 1)
    beside = list[int]()

    def loader(config: ModelConfig, version: int, path: Path) -> Servable:
        beside.append(len(watcher.loaded()) if beside else 0)
        return load(config, version, path)

    for preserving in (False, True):
        beside.clear()
        with watching(config, loader, explicit=True, resource_preserving=preserving) as watcher:
            watcher.enable()
            watcher.configure(replace(config, base_path=tmp_path / other))
            look(watcher)
            assert [each.path.parent.name for each in watcher.loaded()] == [other]
            # The old one is there until the new one is, unless memory is scarce.
            assert beside == [0, 0 if preserving else 1]


@pytest.mark.parametrize("change", ["comes", "goes"])
def test_a_change_of_any_kind_has_a_version_tried_again(config: ModelConfig, change: str) -> None:
    publish(config.base_path, 1)
    last = Path(str(config.base_path)) / "1" / "zzz"
    if change == "goes":
        last.touch()
    loader = Failing(LoadError("no runtime"), failures=1)
    with watching(config, loader) as watcher:
        look(watcher)
        assert (loader.calls, served(watcher)) == (1, [])
        last.touch() if change == "comes" else last.unlink()
        look(watcher)
        assert (loader.calls, served(watcher)) == (2, [1])


@pytest.mark.parametrize("change", ["comes", "goes"])
def test_a_change_of_any_kind_while_it_is_loaded_keeps_a_version_out(config: ModelConfig, change: str) -> None:
    publish(config.base_path, 1)
    last = Path(str(config.base_path)) / "1" / "zzz"
    if change == "goes":
        last.touch()
    calls = list[int]()

    def loader(config: ModelConfig, version: int, path: Path) -> Servable:
        calls.append(version)
        if len(calls) == 1:
            last.touch() if change == "comes" else last.unlink()
        return load(config, version, path)

    with watching(config, loader) as watcher:
        assert watcher.failure() == "version 1: m/1 changed while it was loaded."
        look(watcher)
        assert (calls, served(watcher)) == ([1, 1], [1])


def test_a_version_that_is_tried_again_is_loading(config: ModelConfig) -> None:
    publish(config.base_path, 1)
    gated, failing = Gated(), Failing(LoadError("no runtime"), failures=1)

    def loader(config: ModelConfig, version: int, path: Path) -> Servable:
        return (gated if failing.calls else failing)(config, version, path)

    watcher = ModelWatcher(config, loader, WatchOptions(poll_wait_s=0.01))
    watcher.start()
    assert watcher.wait_until_polled(WAIT_S)
    (Path(str(config.base_path)) / "1" / "touched").touch()
    assert gated.entered.wait(WAIT_S)
    assert [(each.state, each.error) for each in watcher.statuses()] == [(VersionState.LOADING, None)]
    gated.gate.set()
    until(watcher.is_ready, WAIT_S)
    assert watcher.stop()


def test_versions_that_failed_are_known_for_as_long_as_their_files_are_there(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelyard.serving.repository._table._KEPT_ENDED", 1)
    publish(config.base_path, 1, 2, 3, 4)
    loader = Failing(LoadError("no runtime"), failures=100)
    with watching(replace(config, policy=ALL), loader) as watcher:
        for _ in range(2):
            assert ([each.version for each in watcher.statuses()], loader.calls) == ([4, 3, 2, 1], 4)
            look(watcher)
