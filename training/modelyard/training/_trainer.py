"""The trainer: everything around a task's step."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import keras
import tensorflow as tf

from modelyard.errors import CheckpointError
from modelyard.training._checkpoints import Checkpoints
from modelyard.training._interrupt import InterruptGuard
from modelyard.training._options import TrainerOptions
from modelyard.training._results import Action, TrainResult
from modelyard.training._run import Run, check_task, make_result
from modelyard.training._task import Task


class Trainer:
    """Trains a task: loops, evaluation, checkpoints, exact resume, actions.

    A run with ``model_dir`` that was stopped, by Ctrl-C or by a kill, goes on
    from its newest checkpoint and ends with the same numbers and weights, bit
    for bit, as one that was never stopped (same machine, same TensorFlow).

    Args:
        task: What to train.
        options: How to.
        actions: Called with every :class:`Event`, in order. What an action
            raises ends the run.
        strategy: Builds the task in its scope and runs the steps on its
            replicas, each on its part of a batch of ``options.batch_size``
            examples; None for one replica.

    Example:
        >>> task = FashionTask()
        >>> result = Trainer(task, TrainerOptions(epochs=3, model_dir=Path("runs/fashion"))).run()
        >>> result.metrics["test_accuracy"]
    """

    def __init__(
        self,
        task: Task,
        options: TrainerOptions,
        actions: Sequence[Action] = (),
        *,
        strategy: tf.distribute.Strategy | None = None,
    ) -> None:
        self._task = task
        self._options = options
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
                one than asked for, or its step returns no loss or creates
                variables.
            TrainingError: An op of a step or of the input failed.
            KeyboardInterrupt: Ctrl-C was pressed. The run has stopped after a
                whole number of steps and, where ``model_dir`` is set, saved a
                checkpoint there. Pressed twice, it stops at once.
        """
        keras.utils.set_random_seed(self._options.seed)
        with nullcontext() if self._strategy is None else self._strategy.scope():
            tf.random.set_global_generator(tf.random.Generator.from_seed(self._options.seed))
            self._task.build()
            run = Run(self._task, self._options, self._actions, self._strategy)
        with InterruptGuard() as guard:
            return run.to_end(guard)


def restore(task: Task, model_dir: Path) -> TrainResult:
    """Builds a task and gives it the weights of its newest checkpoint, to export or evaluate it.

    Args:
        task: The task that was trained.
        model_dir: The folder of the run.

    Returns:
        The numbers of the run up to that checkpoint.

    Raises:
        CheckpointError: There is no checkpoint, it is damaged, or it does not
            fit the task.
    """
    task.build()
    checkpoints = Checkpoints(model_dir / "checkpoints", task.trackables(), keep=1)
    path = checkpoints.latest()
    if path is None:
        raise CheckpointError(f"{model_dir} has no checkpoint; train the task with this model_dir first.")
    state = checkpoints.restore(path)
    check_task(state, task, path)
    return make_result(state, task, resumed_from=state.step, checkpoint=path)
