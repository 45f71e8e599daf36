"""One trial: values from the sampler, training, and what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import optuna

from modelyard.errors import ConfigurationError, NonFiniteLossError
from modelyard.training.run import Evaluated, Event, TrainerOptions
from modelyard.training.tune._space import suggest
from modelyard.training.tune._study import CONTINUES, FOLDER, TuneOptions, open_study, trial_folder
from modelyard.training.user import Task

Send = Callable[[dict[str, Any]], None]
#: Fields of TrainerOptions that the search itself decides.
_OWN = frozenset({"epochs", "max_steps", "model_dir", "seed", "keep_checkpoints"})


class ReportAction:
    """Action of a Trainer that tells an ``optuna.Trial`` how its epochs went, and ends it where it is bad.

    ``metric`` is a name in ``TrainResult.metrics``; ``reported`` is called after each epoch with its number and the
    metric.
    """

    def __init__(self, trial: optuna.Trial, metric: str, reported: Callable[[int, float], None] | None = None) -> None:
        self._trial = trial
        self._metric = metric
        self._reported = reported

    def __call__(self, event: Event) -> None:
        """Takes note of an epoch.

        Raises:
            optuna.TrialPruned: The trial is not worth going on with.
            ConfigurationError: The task has no such metric.
        """
        if not isinstance(event, Evaluated):
            return
        value = find_metric(event.result.metrics, self._metric)
        self._trial.report(value, event.epoch)
        if self._reported is not None:
            self._reported(event.epoch, value)
        if event.step < event.max_steps and self._trial.should_prune():
            raise optuna.TrialPruned()


def find_metric(metrics: dict[str, float], name: str) -> float:
    """One metric of a run."""
    if name not in metrics:
        raise ConfigurationError(f"The metric is {name!r}; the task reports {', '.join(sorted(metrics))}.")
    return metrics[name]


def run_trial(options: TuneOptions, send: Send, *, order: int) -> None:
    """Runs the next trial of a search."""
    import keras

    from modelyard.training.run import Trainer
    from modelyard.training.tasks import find_task

    study = open_study(options, order=order)
    trial = study.ask()
    number = trial.number
    before = trial.user_attrs.get(CONTINUES)
    folder = trial.user_attrs.get(FOLDER, trial_folder(number))
    values = suggest(find_task(options.task), options.space, trial)
    trial.set_user_attr(FOLDER, folder)
    trial.set_user_attr("values", values)
    send({"kind": "start", "number": number, "values": values, "continues": before})
    if before is not None:
        # What the lost process reported counts: pruning compares trials epoch by epoch.
        for epoch, value in study.get_trials(deepcopy=False)[before].intermediate_values.items():
            trial.report(value, epoch)
    keras.backend.clear_session()
    began = time.perf_counter()
    model_dir = options.study_dir / "trials" / folder
    task, trainer_options = configure(options, values, model_dir)

    def reported(epoch: int, value: float) -> None:
        send({"kind": "epoch", "number": number, "epoch": epoch, "value": value})

    try:
        result = Trainer(task, trainer_options, (ReportAction(trial, options.metric, reported),)).run()
        value = find_metric(result.metrics, options.metric)
    except optuna.TrialPruned:
        ended = study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    except NonFiniteLossError as exc:
        trial.set_user_attr("error", exc.message)
        ended = study.tell(trial, state=optuna.trial.TrialState.FAIL)
    else:
        ended = study.tell(trial, value)
    send(
        {
            "kind": "end",
            "number": number,
            "state": ended.state.name.lower(),
            "value": ended.value,
            "seconds": time.perf_counter() - began,
        }
    )


def configure(options: TuneOptions, values: dict[str, Any], model_dir: Path | None) -> tuple[Task, TrainerOptions]:
    """The task and the options of a trial with these hyperparameters, in its folder.

    Raises:
        ConfigurationError: A value is neither an argument of the task nor a field of ``TrainerOptions`` that may vary.
    """
    from modelyard.training.tasks import make_task

    known = {field.name for field in fields(TrainerOptions)} - _OWN
    training = {name: value for name, value in values.items() if name in known}
    rest = [f"{name}={json.dumps(value)}" for name, value in values.items() if name not in known]
    task = make_task(options.task, [*options.assignments, *rest])
    own = {"epochs": options.epochs, "seed": options.seed, "model_dir": model_dir, "keep_checkpoints": 1}
    return task, TrainerOptions(**{**task.recipe, **training, **own})
