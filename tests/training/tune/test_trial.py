from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from modelyard.errors import ConfigurationError
from modelyard.training import Trainer, TrainerOptions
from modelyard.training.tune import Parameter, ReportAction, TuneOptions
from modelyard.training.tune._study import counted, locked, open_study
from modelyard.training.tune._trial import run_trial
from tests.training.toy_task import ToyTask

TOY = "tests.training.toy_task:ToyTask"


def options(folder: Path, **changes: Any) -> TuneOptions:
    space = (Parameter(name="learning_rate", kind="float", low=0.01, high=0.1, log=True),)
    base = TuneOptions(
        task=TOY, study_dir=folder, epochs=2, metric="test_loss", direction="minimize", space=space, trials=3
    )
    return replace(base, **changes)


def run(chosen: TuneOptions, *, order: int = 0) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    run_trial(chosen, messages.append, order=order)
    return messages


def test_a_trial_trains_reports_and_ends(tmp_path: Path) -> None:
    chosen = options(tmp_path, assignments=("units=3",))
    start, *epochs, end = run(chosen)
    assert (start["kind"], start["number"], start["continues"]) == ("start", 0, None)
    assert [(each["kind"], each["epoch"]) for each in epochs] == [("epoch", 1), ("epoch", 2)]
    assert (end["state"], end["value"]) == ("complete", epochs[-1]["value"])
    task = ToyTask(units=3, learning_rate=start["values"]["learning_rate"])
    result = Trainer(task, TrainerOptions(epochs=2)).run()
    assert result.metrics["test_loss"] == end["value"]
    (trial,) = counted(open_study(chosen))
    assert trial.intermediate_values == {1: epochs[0]["value"], 2: epochs[1]["value"]}
    assert list((tmp_path / "trials" / "00000" / "checkpoints").iterdir())


def test_options_of_training_can_be_searched(tmp_path: Path) -> None:
    space = (Parameter(name="batch_size", kind="choice", choices=(11,)),)
    assert run(options(tmp_path, space=space, epochs=1))[0]["values"] == {"batch_size": 11}


def test_orders_give_other_values(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    asked = [open_study(chosen, order=order).ask() for order in (0, 1)]
    assert len({trial.suggest_float("learning_rate", 0.01, 0.1, log=True) for trial in asked}) == 2


def test_a_bad_trial_is_pruned(tmp_path: Path) -> None:
    study = optuna.create_study(direction="minimize", pruner=optuna.pruners.MedianPruner(n_startup_trials=1))
    good = study.ask()
    Trainer(ToyTask(learning_rate=0.1), TrainerOptions(epochs=4), (ReportAction(good, "test_loss"),)).run()
    study.tell(good, good.study.trials[0].intermediate_values[4])
    bad = study.ask()
    with pytest.raises(optuna.TrialPruned):
        Trainer(ToyTask(learning_rate=1e-9), TrainerOptions(epochs=4), (ReportAction(bad, "test_loss"),)).run()
    assert len(study.trials[1].intermediate_values) == 1


def test_a_loss_that_is_not_finite_fails_the_trial_alone(tmp_path: Path) -> None:
    space = (Parameter(name="learning_rate", kind="float", low=1e30, high=1e31),)
    chosen = options(tmp_path, space=space, pruner="none")
    assert run(chosen)[-1]["state"] == "fail"
    (trial,) = counted(open_study(chosen))
    assert "is no longer finite" in trial.user_attrs["error"] or "loss" in trial.user_attrs["error"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "test_accuracy", "epochs": 1}, r"The metric is 'test_accuracy'; the task reports loss, test_loss"),
        ({"space": (Parameter(name="momentum", kind="float", low=0, high=1),)}, "expected argument=value"),
        ({"space": ()}, "declares no search space"),
        ({"task": "fashon"}, "Did you mean 'fashion'"),
    ],
)
def test_what_the_task_cannot_do_is_an_error(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run(options(tmp_path, **changes))


def test_a_folder_is_for_one_search_at_a_time_and_of_one_kind(tmp_path: Path) -> None:
    with locked(options(tmp_path)):
        with pytest.raises(ConfigurationError, match="A search is running in"), locked(options(tmp_path)):
            pass
    with locked(options(tmp_path, trials=9, jobs=2)):
        pass
    with pytest.raises(ConfigurationError, match="has epochs 2; this one has 7"), locked(options(tmp_path, epochs=7)):
        pass
