"""A rule in force over loaded models: what is chosen, what is shown, and what a model without its versions says."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from modelyard.artifact import write_labels
from modelyard.errors import (
    ConfigurationError,
    DeadlineExceededError,
    InvalidModelSpecError,
    PredictionError,
    UnavailableError,
)
from modelyard.serving.config import LoadOptions, ModelConfig, TrafficOptions, WatchOptions, read_traffic_file
from modelyard.serving.metrics import Metrics
from modelyard.serving.repository import ModelManager
from modelyard.serving.requests import Caller, ModelSpec
from modelyard.serving.rollout import Rollout
from modelyard.serving.rollout._store import RolledBack, read_rolled_back, write_rolled_back
from modelyard.serving.servables import Servable, load_servable
from tests.support.models import publish_affine
from tests.support.waiting import until

WAIT_S = 60.0
RULE = (
    'model { name: "m" split { version: 1 weight: 1 } split { version: 2 weight: 1 } version_header: "x-version" '
    "rollback { max_error_rate: 0.5 min_samples: 3 } }"
)


def load(config: ModelConfig, version: int, path: Path) -> Servable:
    return load_servable(config.name, version, path, LoadOptions())


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ModelManager]:
    for number in (1, 2, 3):
        publish_affine(tmp_path / "m", slope=float(number), intercept=0.0)
    config = ModelConfig(name="m", base_path=tmp_path / "m")
    found = ModelManager([config], load, WatchOptions(poll_wait_s=0.05))
    yield found
    found.stop()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def rollout(manager: ModelManager, metrics: Metrics, tmp_path: Path) -> Rollout:
    (tmp_path / "traffic.config").write_text(RULE)
    return Rollout(manager, metrics, TrafficOptions(path=tmp_path / "traffic.config"))


@pytest.mark.parametrize("text", ["{", "[1]", '[{"model": "m"}]'])
def test_a_damaged_state_file_is_an_error(rollout: Rollout, manager: ModelManager, tmp_path: Path, text: str) -> None:
    file = tmp_path / "state.json"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="cannot be read: .*Delete it to begin without any rollback"):
        Rollout(manager, Metrics(), TrafficOptions(path=tmp_path / "traffic.config", state_file=file))


def test_a_state_file_that_cannot_be_looked_at_is_an_error(
    rollout: Rollout, manager: ModelManager, tmp_path: Path
) -> None:
    # As where its folder belongs to another user, which hinders no root.
    options = TrafficOptions(path=tmp_path / "traffic.config", state_file=tmp_path / ("x" * 300))
    with pytest.raises(ConfigurationError, match="--version_traffic_state_file=.* cannot be read: "):
        Rollout(manager, Metrics(), options)


def test_a_state_file_that_cannot_be_written_is_in_the_log(
    rollout: Rollout, manager: ModelManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = TrafficOptions(path=tmp_path / "traffic.config", state_file=tmp_path / "nowhere" / "state.json")
    Rollout(manager, Metrics(), missing)
    assert f"--version_traffic_state_file: Cannot write {missing.state_file}: " in caplog.text


def named(target: str) -> Caller:
    return Caller(header={"x-version": target}.get)  # type: ignore[arg-type]


def test_calls_are_sent_counted_and_shown(manager: ModelManager, rollout: Rollout) -> None:
    spec = ModelSpec(name="m", signature="s")
    manager.start()
    assert manager.wait_until_polled(WAIT_S)
    # The newest is loaded by the policy, the others by the rule; the first is what everybody else gets.
    assert [status.version for status in manager.status("m")] == [3, 2, 1]
    with manager.acquire(ModelSpec(name="m")) as servable:
        assert servable.version == 1
    found = set()
    for _ in range(60):
        with rollout.chosen(spec, None) as chosen:
            assert (chosen.name, chosen.label, chosen.signature) == ("m", None, "s")
            found.add(chosen.version)
    assert found == {1, 2}
    with rollout.chosen(ModelSpec(name="m", version=3), named("2")) as chosen:
        assert chosen.version == 3
    with pytest.raises(InvalidModelSpecError, match="'9' is no version of model 'm'"), rollout.chosen(spec, named("9")):
        pass
    for _ in range(100):
        with pytest.raises(PredictionError), rollout.chosen(spec, named("2")):
            raise PredictionError("it failed")
    rollout.step()
    stable, canary = rollout.rows()
    assert (stable.role, stable.state, stable.failed, stable.share) == ("stable", "serving", 0, 1.0)
    assert (canary.role, canary.state, canary.failed, canary.share) == ("canary", "rolled back", 100, 0.0)
    with rollout.chosen(spec, named("2")) as chosen:
        assert chosen.version == 1
    first, second = rollout.table("m")
    assert list(first) == list(second)
    assert (first["Target"], first["Share"], first["Failed"]) == ("1", "100.0% (by the file 50.0%)", "0 (0.0%)")
    assert second["State"].startswith("rolled back: 100 of ")
    assert (second["Share"], second["Disagreed as a shadow"]) == ("0.0% (by the file 50.0%)", "–")
    assert rollout.table("n") == []


def test_calls_that_end_too_late_have_failed_and_those_of_hung_up_callers_have_not(
    manager: ModelManager, rollout: Rollout
) -> None:
    manager.start()
    assert manager.wait_until_polled(WAIT_S)
    hung_up = Caller(deadline=time.monotonic() + 0.1)
    hung_up.leave()
    time.sleep(0.11)
    for caller in (hung_up, Caller(deadline=time.monotonic() - 1.0), Caller(deadline=time.monotonic() + 60.0)):
        with rollout.chosen(ModelSpec(name="m"), replace(caller, header=named("2").header)):
            pass
    _, canary = rollout.rows()
    assert (canary.requests, canary.failed) == (3, 1)


def test_a_call_that_was_given_up_as_hanging_has_failed_once(manager: ModelManager, rollout: Rollout) -> None:
    manager.start()
    assert manager.wait_until_polled(WAIT_S)
    caller = named("2")
    with rollout.chosen(ModelSpec(name="m"), caller):
        assert caller.given_up is not None
        caller.given_up(DeadlineExceededError("It hangs."))
        _, canary = rollout.rows()
        assert (canary.requests, canary.failed) == (1, 1)
    _, canary = rollout.rows()
    assert (canary.requests, canary.failed) == (1, 1)


def test_what_a_version_did_before_its_label_moved_is_not_the_next_one_s(
    manager: ModelManager, rollout: Rollout, tmp_path: Path
) -> None:
    write_labels(tmp_path / "m", {"canary": 2})
    text = RULE.replace("split { version: 2 weight: 1 }", 'split { label: "canary" weight: 1 }')
    (tmp_path / "traffic.config").write_text(text)
    manager.start()
    assert manager.wait_until_polled(WAIT_S)
    rollout.step()
    spec, canary = ModelSpec(name="m"), named("canary")
    until(lambda: manager.resolve(ModelSpec(name="m", label="canary")) == 2, WAIT_S, "the label")
    rollout.step()
    with pytest.raises(PredictionError), rollout.chosen(spec, canary):
        write_labels(tmp_path / "m", {"canary": 3})
        until(lambda: manager.resolve(ModelSpec(name="m", label="canary")) == 3, WAIT_S, "the label to move")
        rollout.step()
        raise PredictionError("it failed")
    assert [row.requests for row in rollout.rows()] == [0, 0]


def test_nobody_is_sent_to_what_is_not_loaded(
    manager: ModelManager, metrics: Metrics, rollout: Rollout, tmp_path: Path
) -> None:
    with pytest.raises(UnavailableError, match="'m' is still loading"), manager.acquire(ModelSpec(name="m")):
        pass
    (tmp_path / "traffic.config").write_text(RULE.replace("version: 2", 'label: "canary"'))
    rollout.step()
    with (
        pytest.raises(UnavailableError, match="'m' is still loading"),
        manager.acquire(ModelSpec(name="m", label="canary")),
    ):
        pass
    manager.start()
    assert manager.wait_until_polled(WAIT_S)
    for _ in range(30):
        with rollout.chosen(ModelSpec(name="m"), None) as chosen:
            assert chosen.version == 1
    assert [(row.target, row.version, row.state, row.share) for row in rollout.rows()] == [
        ("1", 1, "serving", 1.0),
        ("canary", None, "not loaded", 0.0),
    ]
    shares = metrics.snapshot()[":modelyard:serving:traffic_share"]
    assert {dict(labels)["target"]: share for labels, share in shares} == {"1": 1.0, "canary": 0.0}
    # Whoever names it is told, and it is no failure of a version.
    with (
        pytest.raises(InvalidModelSpecError, match="Unrecognized servable version label: canary"),
        rollout.chosen(ModelSpec(name="m"), named("canary")) as chosen,
        manager.acquire(chosen),
    ):
        pass
    assert rollout.rows()[1].failed == 0


def test_a_rule_that_waits_forgets_no_rollback(manager: ModelManager, tmp_path: Path) -> None:
    path, state = tmp_path / "traffic.config", tmp_path / "state.json"
    targets = 'split { label: "stable" } split { version: 2 }'
    path.write_text(f'model {{ name: "m" {targets} rollback {{ max_error_rate: 0.5 }} }}')
    digest = read_traffic_file(path)["m"].digest
    write_rolled_back(state, (RolledBack(model="m", target="2", version=2, rule=digest, reason="it failed"),))
    rollout = Rollout(manager, Metrics(), TrafficOptions(path=path, state_file=state))
    manager.start()
    assert manager.wait_until_polled(WAIT_S)
    rollout.step()
    assert {row.state for row in rollout.rows()} == {"waiting"}
    write_labels(tmp_path / "m", {"stable": 1})
    until(lambda: manager.resolve(ModelSpec(name="m", label="stable")) == 1, WAIT_S)
    rollout.step()
    assert [row.state for row in rollout.rows()] == ["serving", "rolled back"]
    assert [each.target for each in read_rolled_back(state)] == ["2"]


def test_a_rule_for_a_model_that_is_not_served_is_named_once(
    manager: ModelManager, rollout: Rollout, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not caplog.records
    (tmp_path / "traffic.config").write_text(RULE.replace('"m"', '"M"'))
    for _ in range(2):
        rollout.step()
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "rules for models that are not served: 'M'; the models here are: 'm'. Correct" in record.message
    more = [*manager.configs, ModelConfig(name="M", base_path=tmp_path / "m")]
    manager.start()
    manager.reload(more, timeout_s=WAIT_S)
    rollout.step()
    assert [row.model for row in rollout.rows() if row.state == "serving"] == ["M", "M"]


def test_a_start_with_a_rule_is_over_when_its_stable_version_can_answer(tmp_path: Path) -> None:
    """The newest is loaded first: until the stable one has come nobody is told that the model is not there."""
    for number in (1, 2):
        publish_affine(tmp_path / "m", slope=float(number), intercept=0.0)
    write_labels(tmp_path / "m", {"stable": 1})
    come = threading.Event()

    def late(config: ModelConfig, version: int, path: Path) -> Servable:
        assert version == 2 or come.wait(WAIT_S)
        return load(config, version, path)

    manager = ModelManager([ModelConfig(name="m", base_path=tmp_path / "m")], late, WatchOptions(poll_wait_s=0.05))
    (tmp_path / "traffic.config").write_text('model { name: "m" split { label: "stable" } }')
    rollout = Rollout(manager, Metrics(), TrafficOptions(path=tmp_path / "traffic.config"))
    manager.start()
    until(lambda: manager.watcher(ModelSpec(name="m")).is_available(2), WAIT_S)
    rollout.step()
    assert not manager.all_ready()
    for spec in (ModelSpec(name="m"), ModelSpec(name="m", version=1), ModelSpec(name="m", label="stable")):
        with (
            pytest.raises(UnavailableError, match="'m' is still loading"),
            rollout.chosen(spec, None) as chosen,
            manager.acquire(chosen),
        ):
            pass
    come.set()
    assert manager.wait_until_polled(WAIT_S)
    assert manager.all_ready()
    with manager.acquire(ModelSpec(name="m")) as servable:
        assert servable.version == 1
    assert manager.stop()


def test_a_rule_whose_stable_version_does_not_come_waits_for_it(manager: ModelManager, tmp_path: Path) -> None:
    (tmp_path / "traffic.config").write_text('model { name: "m" split { label: "stable" } }')
    rollout = Rollout(manager, Metrics(), TrafficOptions(path=tmp_path / "traffic.config"))
    manager.start()
    assert manager.wait_until_polled(WAIT_S)
    rollout.step()
    assert [row.state for row in rollout.rows()] == ["waiting"]
    with rollout.chosen(ModelSpec(name="m"), None) as chosen, manager.acquire(chosen) as servable:
        assert servable.version == 3
    write_labels(tmp_path / "m", {"stable": 3})
    until(lambda: manager.resolve(ModelSpec(name="m", label="stable")) == 3, WAIT_S)
    rollout.step()
    assert [(row.version, row.state) for row in rollout.rows()] == [(3, "serving")]
