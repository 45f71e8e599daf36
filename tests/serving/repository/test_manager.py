"""What the manager says of its models and versions, and to those who keep something by model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from modelyard.artifact import write_labels
from modelyard.errors import (
    InvalidModelSpecError,
    LoadError,
    ModelNotFoundError,
    ModelNotReadyError,
    ModelyardError,
    UnavailableError,
    UnsupportedError,
)
from modelyard.serving import ModelConfig, ModelSpec, Servable, VersionPolicy, VersionState, WatchOptions
from modelyard.serving.repository import ModelManager, VersionStatus
from tests.support.models import publish_affine
from tests.support.waiting import until
from tests.support.watching import WAIT_S, Gated, damage, load, look, managed


def test_versions_are_counted_by_state(tmp_path: Path) -> None:
    for _ in range(3):
        publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    gate = threading.Event()

    def loader(config: ModelConfig, version: int, path: Path) -> Servable:
        if version == 2:
            raise LoadError("it is damaged")
        # The newest load first.
        if version == 1:
            gate.wait(60)
        return load(config, version, path)

    config = ModelConfig(name="m", base_path=tmp_path / "m", policy=VersionPolicy(latest=None))
    manager = ModelManager([config], loader, WatchOptions(poll_wait_s=0.01, max_load_retries=0))

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


@pytest.fixture
def three(tmp_path: Path) -> ModelConfig:
    """Three versions, all served."""
    for _ in range(3):
        publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    return ModelConfig(name="m", base_path=tmp_path / "m", policy=VersionPolicy(latest=None))


def numbers(statuses: Iterable[VersionStatus]) -> list[int]:
    return [each.version for each in statuses]


def refusal(ask: Callable[[], object]) -> tuple[type[ModelyardError], str]:
    with pytest.raises(ModelyardError) as caught:
        ask()
    return type(caught.value), caught.value.message


def test_states_of_models_and_of_versions(three: ModelConfig, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with managed(three, ModelConfig(name="empty", base_path=tmp_path / "empty")) as manager:
        assert numbers(manager.status("m")) == [3, 2, 1]
        assert [numbers(manager.status("m", number)) for number in (1, 2, 3)] == [[1], [2], [3]]
        assert refusal(lambda: manager.status("m", 4)) == (
            ModelNotFoundError,
            "Could not find version 4 of model m; it has [3, 2, 1].",
        )
        assert refusal(lambda: manager.status("empty"))[1] == "Could not find any versions of model empty"
        unknown = "Could not find any versions of model absent; the models here are: empty, m."
        assert refusal(lambda: manager.status("absent")) == (ModelNotFoundError, unknown)
        assert refusal(lambda: manager.status(""))[0] is InvalidModelSpecError
        manager.reload([], timeout_s=WAIT_S)
        assert [(each.version, each.state) for each in manager.status("m")] == [
            (number, VersionState.END) for number in (3, 2, 1)
        ]
        assert refusal(lambda: manager.status("absent"))[1].endswith("; there are no models here.")


def test_what_a_spec_means(three: ModelConfig) -> None:
    write_labels(three.base_path, {"stable": 2})
    with managed(three) as manager:
        assert manager.labels("m") == {"stable": 2}
        assert manager.resolve(ModelSpec(name="m", version=1)) == 1
        assert manager.resolve(ModelSpec(name="m", label="stable")) == 2
        for spec in (
            ModelSpec(name="m", version=4),
            ModelSpec(name="m", label="canary"),
            ModelSpec(name="m"),
            ModelSpec(name="absent", version=1),
        ):
            assert manager.resolve(spec) is None
        assert manager.is_settled("m")
        # Of what is not there nothing is said.
        assert (manager.labels("absent"), manager.ready("absent"), manager.is_settled("absent")) == ({}, False, False)
        assert refusal(lambda: manager.watcher(ModelSpec(name="absent"))) == (
            ModelNotFoundError,
            "Servable not found for request: Latest(absent); the models here are: m.",
        )
        assert refusal(lambda: manager.watcher(ModelSpec(name="")))[0] is InvalidModelSpecError


def test_labels_go_to_versions_that_can_answer(three: ModelConfig) -> None:
    def labelled(**labels: int) -> ModelConfig:
        return replace(three, labels=labels)

    with pytest.raises(ModelNotReadyError, match="assign label 'stable' to version 1 of model m"):
        ModelManager([labelled(stable=1)], load, WatchOptions())
    with managed(three) as manager:
        manager.reload([labelled(stable=1)], timeout_s=WAIT_S)
        with pytest.raises(ModelNotReadyError, match="assign label 'canary' to version 9"):
            manager.reload([labelled(stable=2, canary=9)], timeout_s=WAIT_S)
        assert manager.labels("m") == {"stable": 1}


def test_new_labels_may_be_ahead_of_their_versions(three: ModelConfig) -> None:
    def labelled(**labels: int) -> ModelConfig:
        return replace(three, labels=labels)

    with managed(labelled(stable=1), allow_new_labels=True) as manager:
        manager.reload([labelled(stable=2, canary=9)], timeout_s=WAIT_S)
        manager.reload([labelled(stable=3, canary=9)], timeout_s=WAIT_S)
        # One that was there before does not leave a version that answers for one that does not.
        with pytest.raises(ModelNotReadyError, match="assign label 'stable' to version 8"):
            manager.reload([labelled(stable=8, canary=9)], timeout_s=WAIT_S)
        assert manager.labels("m") == {"stable": 3, "canary": 9}


def test_requests_without_a_version_get_what_is_preferred(three: ModelConfig, tmp_path: Path) -> None:
    def asked(**spec: Any) -> int:
        with manager.acquire(ModelSpec(name="m", **spec)) as servable:
            return servable.version

    write_labels(three.base_path, {"stable": 2})
    publish_affine(tmp_path / "later", slope=1.0, intercept=0.0)
    publish_affine(tmp_path / "later", slope=1.0, intercept=0.0)
    with managed(replace(three, policy=VersionPolicy())) as manager:
        assert (asked(), asked(label="stable")) == (3, 2)
        preferred = {name: (ModelSpec(name=name, version=1), frozenset({1})) for name in ("m", "later")}
        manager.prefer(preferred)
        until(lambda: manager.resolve(ModelSpec(name="m", version=1)), WAIT_S)
        assert (asked(), asked(version=3), asked(label="stable")) == (1, 3, 2)
        manager.prefer({**preferred, "m": (ModelSpec(name="m", label="stable"), frozenset())})
        assert (asked(), asked(version=3)) == (2, 3)
        until(lambda: not manager.resolve(ModelSpec(name="m", version=1)), WAIT_S)
        # Of models that come later, too.
        manager.reload([*manager.configs, ModelConfig(name="later", base_path=tmp_path / "later")], timeout_s=WAIT_S)
        with manager.acquire(ModelSpec(name="later")) as servable:
            assert servable.version == 1
        manager.prefer({})
        assert asked() == 3


def test_a_version_whose_batch_hangs_answers_nothing_until_that_ends(three: ModelConfig, tmp_path: Path) -> None:
    publish_affine(tmp_path / "other", slope=1.0, intercept=0.0)
    other = ModelConfig(name="other", base_path=tmp_path / "other")
    given_up = list[tuple[object, ...]]()
    with managed(replace(three, policy=VersionPolicy(latest=2)), other) as manager:
        manager.before_suspending(lambda *told: given_up.append(told))
        second, third, alone = sorted(manager.loaded(), key=lambda each: (each.name == "other", each.version))
        assert (second.version, third.version, alone.name) == (2, 3, "other")
        manager.suspend(third, "it takes too long", threads=[7], limit_s=1.5)
        assert given_up == [(third, [7], 1.5, "it takes too long")]
        # The one beside it answers: the model is as ready as before.
        assert (manager.ready("m"), manager.all_ready()) == (True, True)
        with manager.acquire(ModelSpec(name="m")) as servable:
            assert servable is second
        asked = partial(manager.watcher(ModelSpec(name="m")).lend, ModelSpec(name="m", version=3))
        assert refusal(asked) == (UnavailableError, "it takes too long")
        # One that was never there is not called unavailable for it.
        absent = refusal(lambda: manager.watcher(ModelSpec(name="m")).lend(ModelSpec(name="m", version=9)))
        assert absent == (
            ModelNotFoundError,
            "Servable not found for request: Specific(m, 9); loaded versions: [2].",
        )
        manager.suspend(second, "this one, too", threads=[8], limit_s=1.5)
        assert (manager.ready("m"), manager.all_ready()) == (False, True)
        # No older version is loaded meanwhile.
        look(manager.watcher(ModelSpec(name="m")))
        assert numbers(manager.status("m")) == [3, 2]
        manager.suspend(alone, "nothing answers", threads=[9], limit_s=1.5)
        assert not manager.all_ready()
        for each in (second, third, alone):
            manager.resume(each)
        look(manager.watcher(ModelSpec(name="m")))
        assert (manager.ready("m"), manager.all_ready()) == (True, True)
        assert {id(each) for each in manager.loaded()} == {id(second), id(third), id(alone)}


def test_no_models_are_ready() -> None:
    manager = ModelManager([], load, WatchOptions())
    assert manager.all_ready()
    assert manager.stop()


def test_a_model_that_was_added_counts_once_it_could_answer(three: ModelConfig, tmp_path: Path) -> None:
    publish_affine(tmp_path / "added", slope=1.0, intercept=0.0)
    gated = Gated()

    def loader(config: ModelConfig, version: int, path: Path) -> Servable:
        return (gated if config.name == "added" else load)(config, version, path)

    with managed(three, loader=loader) as manager:
        manager.reload([three, ModelConfig(name="added", base_path=tmp_path / "added")], timeout_s=0.0)
        assert gated.entered.wait(WAIT_S)
        assert (manager.ready("added"), manager.is_settled("added"), manager.all_ready()) == (False, False, True)
        gated.gate.set()
        until(lambda: manager.ready("added"), WAIT_S)
        (tmp_path / "added" / "1").rename(tmp_path / "away")
        until(lambda: not manager.ready("added"), WAIT_S)
        assert not manager.all_ready()


def test_a_model_that_was_there_at_the_start_counts_at_once(three: ModelConfig) -> None:
    gated = Gated()
    manager = ModelManager([three], gated, WatchOptions(poll_wait_s=0.01))
    manager.start()
    assert gated.entered.wait(WAIT_S)
    assert (manager.ready("m"), manager.all_ready(), manager.is_settled("m")) == (False, False, False)
    gated.gate.set()
    assert manager.wait_until_polled(WAIT_S)
    assert (manager.ready("m"), manager.all_ready(), manager.is_settled("m")) == (True, True, True)
    assert manager.stop()


def test_models_are_controlled_in_explicit_mode_alone(three: ModelConfig) -> None:
    manager = ModelManager([three], load, WatchOptions(explicit=True))
    manager.start()
    # What nobody asked for is not waited for.
    assert (manager.all_ready(), manager.ready("m"), manager.is_settled("m")) == (True, False, False)
    manager.load_model("m")
    assert (manager.all_ready(), manager.ready("m"), manager.is_settled("m")) == (True, True, True)
    for change in (manager.load_model, manager.unload_model):
        unknown = (ModelNotFoundError, "Model 'absent' is not configured; the models here are: m.")
        assert refusal(partial(change, "absent")) == unknown
    assert manager.stop()
    with managed(three) as polling:
        for change in (polling.load_model, polling.unload_model):
            assert refusal(partial(change, "m"))[0] is UnsupportedError


def test_a_model_that_is_loaded_on_request_again_is_as_new(three: ModelConfig, tmp_path: Path) -> None:
    """One that loads for long, or cannot be loaded any more, does not take the others out of service."""
    publish_affine(tmp_path / "other", slope=1.0, intercept=0.0)
    gated = Gated()
    gated.gate.set()
    configs = [three, ModelConfig(name="other", base_path=tmp_path / "other")]
    manager = ModelManager(configs, gated, WatchOptions(explicit=True))
    manager.start()
    for name in ("m", "other"):
        manager.load_model(name)
    manager.unload_model("m")
    assert manager.all_ready()
    gated.gate.clear()
    gated.entered.clear()
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(manager.load_model, "m")
        assert gated.entered.wait(WAIT_S)
        ready = manager.ready("m"), manager.all_ready()
        gated.gate.set()
        loading.result(WAIT_S)
    assert ready == (False, True)
    manager.unload_model("m")
    for number in (1, 2, 3):
        damage(tmp_path / "m" / str(number))
    manager.unload_model("other")
    manager.load_model("other")
    assert refusal(partial(manager.load_model, "m"))[0] is LoadError
    assert (manager.ready("m"), manager.all_ready()) == (False, True)
    assert manager.stop()


def test_all_base_paths_are_looked_at_when_that_is_asked_for(three: ModelConfig) -> None:
    manager = ModelManager([three], load, WatchOptions(poll_wait_s=10 * WAIT_S))
    manager.start()
    assert manager.wait_until_polled(WAIT_S)
    publish_affine(three.base_path, slope=2.0, intercept=0.0)
    manager.look()
    until(lambda: manager.resolve(ModelSpec(name="m", version=4)), WAIT_S)
    assert manager.stop()
