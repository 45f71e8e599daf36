"""Where a run is: what its checkpoints hold, which of them it may go on from, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modelyard.errors import CheckpointError
from modelyard.training._checkpoints import RunState, list_variables
from modelyard.training._ema import WeightAverage
from modelyard.training._options import TrainerOptions
from modelyard.training._results import TrainResult
from modelyard.training._task import Task

_MISFIT_KEYS = (
    "batch_size",
    "seed",
    "steps_per_epoch",
    "resident",
    "accumulate_steps",
    "clip_norm",
    "ema_decay",
    "precision",
)


def tracked(task: Task, ema: WeightAverage | None) -> dict[str, Any]:
    """What the checkpoints of a run hold.

    Args:
        task: The task.
        ema: The average of its weights, where there is one.
    """
    return {**task.trackables(), **({} if ema is None else {"ema": ema})}


def variable_ids(task: Task) -> set[int]:
    """Identities of all variables of a task.

    Args:
        task: The task, built.
    """
    return {id(variable) for trackable in task.trackables().values() for variable in list_variables(trackable)}


def run_config(options: TrainerOptions, steps_per_epoch: int) -> dict[str, Any]:
    """The options that a checkpoint remembers.

    Args:
        options: Of the run.
        steps_per_epoch: Batches of an epoch.
    """
    return {
        "batch_size": options.batch_size,
        "seed": options.seed,
        "steps_per_epoch": steps_per_epoch,
        "epochs": options.epochs,
        "resident": options.loop == "epoch",
        "accumulate_steps": options.accumulate_steps,
        "clip_norm": options.clip_norm,
        "ema_decay": options.ema_decay,
        "precision": options.precision,
    }


def check_task(state: RunState, task: Task, path: Path) -> None:
    """Refuses a checkpoint of another task.

    Args:
        state: Of the checkpoint.
        task: The task that wants it.
        path: The folder of the checkpoint.

    Raises:
        CheckpointError: The names differ.
    """
    if state.task != task.name:
        raise CheckpointError(f"The checkpoint {path} is of task {state.task!r}; expected one of {task.name!r}.")


def check_config(state: RunState, config: Mapping[str, Any], path: Path) -> None:
    """Refuses a checkpoint of a run with other options, which could not end with the same numbers.

    Args:
        state: Of the checkpoint.
        config: Of the run that wants it.
        path: The folder of the checkpoint.

    Raises:
        CheckpointError: An option differs.
    """
    for key in _MISFIT_KEYS:
        if state.config.get(key) != config[key]:
            raise CheckpointError(
                f"The checkpoint {path} is of a run with {key} {state.config.get(key)}; this one has "
                f"{config[key]}. Use the same value to go on with it, or another model_dir to start anew."
            )


def make_result(state: RunState, task: Task, *, resumed_from: int | None, checkpoint: Path | None) -> TrainResult:
    """The outcome of a run that has come as far as a state.

    Args:
        state: Where the run is.
        task: Its task.
        resumed_from: The step it took over at, if it did.
        checkpoint: Its newest checkpoint.
    """
    return TrainResult(
        task=task.name,
        step=state.step,
        epochs=state.history,
        resumed_from=resumed_from,
        checkpoint=checkpoint,
        data=task.data_description(),
        config=state.config,
    )
