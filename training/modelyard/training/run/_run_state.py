"""Where a run is: what its checkpoints hold, which of them it may go on from, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from modelyard.errors import CheckpointError, ConfigurationError
from modelyard.training.checkpoint import RunState, list_variables
from modelyard.training.loop import DeviceLoop, WeightAverage
from modelyard.training.run._options import TrainerOptions
from modelyard.training.run._results import TrainResult
from modelyard.training.user import Task


def tracked(task: Task, ema: WeightAverage | None) -> dict[str, object]:
    """What the checkpoints of a run hold."""
    return {**task.models, **({} if ema is None else {"ema": ema})}


def variable_ids(task: Task) -> set[int]:
    """Identities of all variables of a task."""
    return {id(variable) for trackable in task.models.values() for variable in list_variables(trackable)}


def find_metrics(task: Task, strategy: tf.distribute.Strategy | None) -> dict[str, object]:
    """The ``keras.metrics`` objects of a task."""
    metrics = {name: item for name, item in task.models.items() if isinstance(item, keras.metrics.Metric)}
    if metrics and isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise ConfigurationError(
            f"The task {task.name!r} has the metrics {', '.join(metrics)}. With parameter servers (--strategy ps) "
            "workers would change a metric at the same time and lose each other's changes. Return values for each "
            "example instead, or use another strategy."
        )
    for name, metric in metrics.items():
        made = [strategy is None or strategy.extended.variable_created_in_scope(v.value) for v in metric.variables]
        if not all(made):
            raise ConfigurationError(
                f"The metric {name!r} of task {task.name!r} was made outside of the strategy's scope, so that replicas "
                "would overwrite each other's counts. Make it in build()."
            )
    return metrics


class StepMetrics:
    """The metrics that a step updates."""

    def __init__(
        self, metrics: Mapping[str, Any], loop: DeviceLoop, *, label: str, strategy: tf.distribute.Strategy | None
    ) -> None:
        used = {id(variable) for variable in loop.variables}
        parts = {
            name: {id(part) for v in item.variables for part in getattr(v.value, "values", (v.value,))}
            for name, item in metrics.items()
        }
        known = set().union(*parts.values())
        for variable in loop.variables:
            # Keras makes all of a metric's variables to be merged when they are read. What each replica keeps for
            # itself is no metric: of that, the first one's is read.
            merged = variable.synchronization is tf.VariableSynchronization.ON_READ
            merged = merged and variable.aggregation is not tf.VariableAggregation.ONLY_FIRST_REPLICA
            if merged and id(variable) not in known:
                raise ConfigurationError(
                    f"{label} updates the metric variable {variable.name.partition(':')[0]!r}, which is never reset: "
                    "its value would add up over all epochs. Make the keras.metrics object an attribute of the "
                    "task in build(), by the name of its value; the trainer then resets, merges and reads it."
                )
        self._metrics = {name: item for name, item in metrics.items() if parts[name] & used}
        self._strategy = strategy
        # Out of a graph, replicas of another strategy may be in the way of TensorFlow's collective ops.
        self._merge = tf.function(self._merged)
        self.names: tuple[str, ...] = tuple(self._metrics)
        for name in self._metrics:
            if name in loop.names:
                raise ConfigurationError(
                    f"{label} returns a value {name!r}, which is the name of a metric, too. Leave it out: the trainer "
                    "reads the metric after the last step."
                )
        self.read()

    def reset(self) -> None:
        """Makes them forget what they have counted."""
        for metric in self._metrics.values():
            metric.reset_state()

    def read(self) -> dict[str, float]:
        """Their values, over all replicas."""
        values: dict[str, float] = {}
        if not self._metrics:
            return values
        with nullcontext() if self._strategy is None else self._strategy.scope():
            merged = self._merge()
        for (name, metric), states in zip(self._metrics.items(), merged, strict=True):
            value = metric.stateless_result(states)
            if isinstance(value, Mapping) or tf.rank(value) != 0:
                received = sorted(value) if isinstance(value, Mapping) else f"the shape {tuple(value.shape)}"
                raise ConfigurationError(
                    f"The value of the metric {name!r} has {received}; expected a scalar, such as that of "
                    "keras.metrics.F1Score(average='macro')."
                )
            values[name] = float(value)
        return values

    def _merged(self) -> list[list[tf.Tensor]]:
        return [[tf.convert_to_tensor(v) for v in metric.variables] for metric in self._metrics.values()]


def learning_rates(task: Task) -> dict[str, float]:
    """The learning rates that checkpoints hold, by the name of their optimizer: those that follow no schedule."""
    return {
        name: float(tf.convert_to_tensor(item.learning_rate))
        for name, item in task.models.items()
        if isinstance(item, keras.optimizers.Optimizer) and isinstance(item.learning_rate, keras.Variable)
    }


def overruled(task: Task, options: TrainerOptions, path: Path, rates: Mapping[str, float]) -> tuple[str, ...]:
    """Sentences about options that have no effect, because a checkpoint says something else."""
    notes = [
        f"The learning rate of {name!r} is {rate:g}, from the checkpoint {path.name}; {rates[name]:g} is not used. "
        f"To use it, begin another run with these weights: --model-dir NEW --warm-start {options.model_dir}."
        for name, rate in learning_rates(task).items()
        if rate != rates[name]
    ]
    if options.warm_start is not None:
        notes.append(f"The run goes on from its own checkpoint {path.name}; warm_start (--warm-start) is not used.")
    return tuple(notes)


def run_config(options: TrainerOptions, steps_per_epoch: int | None, max_steps: int) -> dict[str, object]:
    """The options that a checkpoint remembers."""
    return {
        "batch_size": options.batch_size,
        "seed": options.seed,
        "steps_per_epoch": steps_per_epoch,
        "max_steps": max_steps,
        "resident": options.mode.resident,
        "accumulate_steps": options.accumulate_steps,
        "clip_norm": options.clip_norm,
        "ema_decay": options.ema_decay,
        "precision": options.precision,
    }


def check_task(state: RunState, task: Task, path: Path) -> None:
    """Refuses a checkpoint of another task."""
    if state.task != task.name:
        raise CheckpointError(f"The checkpoint {path} is of task {state.task!r}; expected one of {task.name!r}.")


def check_config(state: RunState, config: Mapping[str, object], path: Path) -> None:
    """Refuses a checkpoint of a run with other options, which could not end with the same numbers."""
    for key, now in config.items():
        was = state.config.get(key)
        if key == "max_steps" or was == now:
            continue
        said = f"{key} {was}; this one has {now}. Use the same value"
        if key == "resident":
            modes = ("another loop than epoch", "the loop epoch")
            said = f"{modes[bool(was)]}; this one has {modes[bool(now)]}. Use the same loop"
        elif key == "steps_per_epoch":
            said = f"{was} steps in an epoch; this one has {now}. Use the same data"
        raise CheckpointError(
            f"The checkpoint {path} is of a run with {said} to go on with it, or another model_dir to start anew."
        )


def make_result(
    state: RunState,
    task: Task,
    *,
    resumed_from: int | None,
    checkpoint: Path | None,
    identity: Mapping[str, object],
) -> TrainResult:
    """The outcome of a run that has come as far as a state."""
    return TrainResult(
        task=task,
        step=state.step,
        history=state.history,
        resumed_from=resumed_from,
        checkpoint=checkpoint,
        data=task.data_description(),
        config=state.config,
        identity=identity,
    )
