"""The trainer: everything around a task's step."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training.checkpoint import Checkpoints, find_checkpoint, list_weights, read_state, restore_models
from modelyard.training.loop import Loop, WeightAverage
from modelyard.training.run._goal import Goal, goal_of
from modelyard.training.run._identity import need_record, read_record
from modelyard.training.run._interrupt import InterruptGuard
from modelyard.training.run._notebook import NotebookProgress, in_notebook
from modelyard.training.run._options import TrainerOptions, change_options
from modelyard.training.run._results import Action, TrainResult
from modelyard.training.run._run import Run
from modelyard.training.run._run_state import check_task, make_result, tracked
from modelyard.training.user import Task, build, need_task


class Trainer:
    """Trains a task: loops, evaluation, checkpoints, exact resume, actions.

    A run with ``model_dir`` that was stopped, by Ctrl-C or by a kill, goes on from its newest checkpoint and ends with
    the same numbers and weights, bit for bit, as one that was never stopped (same machine, same TensorFlow).

    Args:
        task: What to train.
        options: How to; None for the task's recipe.
        actions: Called with every :class:`Event`, in order. What an action raises ends the run. None for a bar and
            curves in a notebook, and for nothing elsewhere.
        strategy: Builds the task in its scope and runs the steps on its replicas, each on its part of a batch of
            ``options.batch_size`` examples; None for one replica.
        changes: Fields of :class:`TrainerOptions` to set on top of ``options``.

    Raises:
        ConfigurationError: The task is none, a field is unknown, a value out of its range, or an action cannot be
            called.

    Example:
        >>> run = Trainer(FashionTask(), max_steps=3_000, eval_every_steps=500, model_dir="runs/fashion").run()
        >>> run.metrics["test_accuracy"]
    """

    def __init__(
        self,
        task: Task,
        options: TrainerOptions | None = None,
        actions: Sequence[Action] | None = None,
        *,
        strategy: tf.distribute.Strategy | None = None,
        **changes: Any,
    ) -> None:
        if actions is None:
            actions = (NotebookProgress(),) if in_notebook() else ()
        need_task(task)
        self._task = task
        recipe = change_options(TrainerOptions(), task.recipe) if options is None else options
        self._options = change_options(recipe, changes)
        self._actions = tuple(actions) if isinstance(actions, Iterable) else (actions,)
        for action in self._actions:
            if not callable(action):
                raise ConfigurationError(
                    f"actions has a {type(action).__name__}; expected functions of an event, such as print, or actions "
                    "of modelyard.training, such as EarlyStop. Callbacks of Keras are for its own fit()."
                )
        self._strategy = strategy

    @classmethod
    def resume(
        cls,
        model_dir: Path | str,
        actions: Sequence[Action] | None = None,
        *,
        task: Task | None = None,
        strategy: tf.distribute.Strategy | None = None,
        **changes: Any,
    ) -> Trainer:
        """The trainer of a run that was begun before, made again from the run's ``run.json``.

        Args:
            model_dir: The folder of the run.
            actions: As for the trainer.
            task: The task; None makes it as the run says.
            strategy: As for the trainer.
            changes: Fields of :class:`TrainerOptions` to change, such as ``max_steps``.

        Raises:
            CheckpointError: The run does not say what it is of.
            ConfigurationError: The task cannot be made again; or a field is unknown or out of its range.
        """
        folder = Path(model_dir)
        record = need_record(folder)
        options = change_options(record.make_options(folder), changes)
        return cls(record.make_task() if task is None else task, options, actions, strategy=strategy)

    def run(self) -> TrainResult:
        """Trains until all steps are done.

        Seeds the global random state of Python, numpy, Keras and TensorFlow, builds the task, and restores the newest
        checkpoint where there is one. The task then holds the trained model.

        Raises:
            NonFiniteLossError: The loss or a weight became NaN or infinite.
            CheckpointError: The newest checkpoint is damaged, does not fit the task, or is of a run with other options;
                or one could not be written.
            ConfigurationError: The task's input has no known length or another one than it should have, or a step
                returns no loss, creates variables, or updates a metric that is not among :attr:`Task.models`.
            TrainingError: An op of a step or of the input failed.
            KeyboardInterrupt: Ctrl-C was pressed. The run has stopped after a complete step and, where ``model_dir`` is
                set, saved a checkpoint there. Pressed twice, it stops at once.
            SystemExit: The same after SIGTERM, as before a pre-emption. The exit code is 143.
        """
        with self._built() as run, InterruptGuard() as guard:
            return run.to_end(guard)

    def stream(self) -> Generator[tuple[int, dict[str, float]], None, TrainResult]:
        """Trains as :meth:`run` does, and yields the values of every step while the device loop goes on.

        The loop does not wait for the consumer. One that stops early ends the run after the current step, with a
        checkpoint where ``model_dir`` is set.

        Yields:
            The number of the step, from 1, and what ``train_step`` returned, averaged over the batch.

        Returns:
            As :meth:`run`: the value of ``yield from``.

        Example:
            >>> for step, values in Trainer(task, options).stream():
            ...     print(step, values["loss"])
        """
        with self._built(streaming=True) as run, InterruptGuard() as guard:
            yield from run.stream(guard)
            return run.result()

    @contextmanager
    def _built(self, *, streaming: bool = False) -> Iterator[Run]:
        loop = Loop(self._options, strategy=self._strategy)
        with loop.building():
            build(self._task)
        with loop.placed():
            run = Run(self._task, self._options, loop, self._actions, streaming=streaming)
        yield run


def restore(model_dir: Path | str, task: Task | None = None, *, goal: Goal | str | None = None) -> TrainResult:
    """Builds the task of a run and restores the weights of a checkpoint, to export or evaluate it.

    Where the run averaged its weights, the task gets the averages.

    Args:
        model_dir: The folder of the run, or of one checkpoint.
        task: The task that was trained, with or without a strategy; None makes it as the run's ``run.json`` says.
        goal: Takes the best checkpoint in place of the newest, from a run with ``TrainerOptions(keep_best=...)``.

    Returns:
        The numbers of the run up to that checkpoint; its ``task`` holds the models.

    Raises:
        CheckpointError: There is no checkpoint, it is damaged, or it does not fit the task; the run does not say which
            task it is of; or the goal's number is NaN in all of its evaluations.
        ConfigurationError: The task cannot be made again from what the run says, or what was given is none; or the
            evaluations have no number of the goal's name.
    """
    if task is not None:
        need_task(task)
    path = find_checkpoint(Path(model_dir), goal=None if goal is None else goal_of(goal))
    record = read_record(path)
    if task is None:
        task = need_record(path).make_task()
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
    identity = {} if record is None else record.summary()
    return make_result(state, task, resumed_from=state.step, checkpoint=path, identity=identity)
