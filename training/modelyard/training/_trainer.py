"""The trainer: everything around a task's step."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training._checkpoints import Checkpoints, find_checkpoint, list_weights, read_state, restore_models
from modelyard.training._defaults import build
from modelyard.training._ema import WeightAverage
from modelyard.training._goal import Goal
from modelyard.training._interrupt import InterruptGuard
from modelyard.training._options import TrainerOptions
from modelyard.training._results import Action, TrainResult
from modelyard.training._run import Run
from modelyard.training._run_state import check_task, make_result, tracked
from modelyard.training._task import Task


class Trainer:
    """Trains a task: loops, evaluation, checkpoints, exact resume, actions.

    A run with ``model_dir`` that was stopped, by Ctrl-C or by a kill, goes on
    from its newest checkpoint and ends with the same numbers and weights, bit
    for bit, as one that was never stopped (same machine, same TensorFlow).

    Args:
        task: What to train.
        options: How to; None for the task's recipe.
        actions: Called with every :class:`Event`, in order. What an action
            raises ends the run.
        strategy: Builds the task in its scope and runs the steps on its
            replicas, each on its part of a batch of ``options.batch_size``
            examples; None for one replica.
        **fields: Fields of :class:`TrainerOptions`, on top of ``options``.

    Raises:
        ConfigurationError: ``TrainerOptions`` has no such field, or its value is out of its range.

    Example:
        >>> run = Trainer(FashionTask(), epochs=3, model_dir="runs/fashion").run()
        >>> run.metrics["test_accuracy"]
    """

    def __init__(
        self,
        task: Task,
        options: TrainerOptions | None = None,
        actions: Sequence[Action] = (),
        *,
        strategy: tf.distribute.Strategy | None = None,
        **fields: Any,
    ) -> None:
        self._task = task
        self._options = make_options(task, options, fields)
        self._actions = tuple(actions)
        self._strategy = strategy

    def run(self) -> TrainResult:
        """Trains until ``options.epochs`` epochs are done.

        Seeds the global random state of Python, numpy, Keras and TensorFlow,
        builds the task, and restores the newest checkpoint where there is one.

        Returns:
            The numbers of every epoch. The task then holds the trained model.

        Raises:
            NonFiniteLossError: The loss or a weight became NaN or infinite.
            CheckpointError: The newest checkpoint is damaged, does not fit the
                task, or is of a run with other options; or one could not be written.
            ConfigurationError: The task's input has no known length or another
                one than asked for, or a step returns no loss, creates
                variables, or updates a metric that is not among :attr:`Task.models`.
            TrainingError: An op of a step or of the input failed.
            KeyboardInterrupt: Ctrl-C was pressed. The run has stopped after a
                whole number of steps and, where ``model_dir`` is set, saved a
                checkpoint there. Pressed twice, it stops at once.
            SystemExit: The process got SIGTERM, as before a pre-emption; it has
                stopped and saved in the same way. The exit code is 143.
        """
        keras.utils.set_random_seed(self._options.seed)
        with self._built() as run, InterruptGuard() as guard:
            return run.to_end(guard)

    def stream(self) -> Generator[tuple[int, dict[str, float]], None, TrainResult]:
        """Trains as :meth:`run` does, and yields the values of every step while the device loop goes on.

        The loop does not wait for the consumer. One that stops early ends the
        run after the current step, with a checkpoint where ``model_dir`` is set.

        Yields:
            The number of the step, from 1, and what ``train_step`` returned, averaged over the batch.

        Returns:
            As :meth:`run`: the value of ``yield from``.

        Raises:
            NonFiniteLossError: As for :meth:`run`, and so are the others.

        Example:
            >>> for step, values in Trainer(task, options).stream():
            ...     print(step, values["loss"])
        """
        with self._built(streaming=True) as run, InterruptGuard() as guard:
            yield from run.stream(guard)
            return run.result()

    @contextmanager
    def _built(self, *, streaming: bool = False) -> Iterator[Run]:
        keras.utils.set_random_seed(self._options.seed)
        with nullcontext() if self._strategy is None else self._strategy.scope():
            tf.random.set_global_generator(tf.random.Generator.from_seed(self._options.seed))
            with _precision(self._options.precision):
                build(self._task)
            run = Run(self._task, self._options, self._actions, self._strategy, streaming=streaming)
        yield run


def restore(task: Task, model_dir: Path, *, goal: Goal | None = None) -> TrainResult:
    """Builds a task and gives it the weights of a checkpoint, to export or evaluate it.

    Where the run averaged its weights, it is the averages that the task gets.

    Args:
        task: The task that was trained, with or without a strategy.
        model_dir: The folder of the run, or of one checkpoint.
        goal: Takes the best checkpoint in place of the newest, from a run with
            ``TrainerOptions(keep_best=...)``.

    Returns:
        The numbers of the run up to that checkpoint.

    Raises:
        CheckpointError: There is no checkpoint, it is damaged, or it does not
            fit the task.
    """
    path = find_checkpoint(model_dir, goal=goal)
    build(task)
    state = read_state(path)
    check_task(state, task, path)
    decay = state.config.get("ema_decay")
    ema = None if decay is None else WeightAverage(list_weights(task.models), decay)
    if state.config.get("precision", "float32") == "float32":
        Checkpoints(path.parent, tracked(task, ema), keep=1).restore(path)
    else:
        # Its variables are float32 all the same; its optimizers may be wrapped, and are not needed here.
        restore_models(path, tracked(task, ema))
    if ema is not None:
        ema.swap()
    return make_result(state, task, resumed_from=state.step, checkpoint=path)


def make_options(task: Task, options: TrainerOptions | None, fields: Mapping[str, Any]) -> TrainerOptions:
    """The options of a run.

    Args:
        task: Its recipe counts where there are no options.
        options: None for the recipe.
        fields: On top of them.

    Raises:
        ConfigurationError: There is no such field.
    """
    known = [field.name for field in dataclasses.fields(TrainerOptions)]
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"Trainer has no option {name!r}.{hint} It has {', '.join(known)}.")
    return (
        dataclasses.replace(options, **fields) if options is not None else TrainerOptions(**{**task.recipe, **fields})
    )


@contextmanager
def _precision(name: str) -> Iterator[None]:
    """Keras' dtype policy for the time of a task's build; layers keep it."""
    if name == "float32":
        # What the user has set is left alone.
        yield
        return
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
