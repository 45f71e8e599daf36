"""The task: what the user owns. Models, optimizers, losses and one step."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from modelyard.artifact import AnyFunction, VerificationData
from modelyard.training._identity import RemembersArguments

if TYPE_CHECKING:
    from pathlib import Path

    import tensorflow as tf

    from modelyard.training._resident import ResidentData
    from modelyard.training._results import TrainResult


@dataclass(frozen=True, kw_only=True)
class InputRequest:
    """What the trainer asks an input function for: one epoch, or the rest of one.

    Attributes:
        batch_size: Examples in each batch; the last one may be smaller.
        seed: Seed of everything random in the input.
        epoch: Number of the epoch, from 0.
        skip_batches: Batches at the start of the epoch to leave out, because
            an earlier run has trained on them.
        num_shards: Workers that share the epoch, each with an input of its own.
            The batches of all workers with the same number make one global
            batch of ``num_shards * batch_size`` examples, the same examples
            that one worker with that batch size would get.
        shard_index: Which of them asks, from 0.
        drop_remainder: Leaves out the examples at the end that fill no whole
            batch, so that every batch has the same static shape.
    """

    batch_size: int
    seed: int = 0
    epoch: int = 0
    skip_batches: int = 0
    num_shards: int = 1
    shard_index: int = 0
    drop_remainder: bool = False


class Task(RemembersArguments, abc.ABC):
    """Everything about a model but the loop around its step.

    The trainer calls :meth:`build` once, then traces :meth:`train_step` and
    :meth:`eval_step` into compiled loops. Steps are written for one replica,
    with ``tf.GradientTape``, and may use any number of models, optimizers and
    losses.

    Attributes:
        name: What the command line, logs and manifests call the task.
        recipe: Fields of ``TrainerOptions`` that suit the task, such as
            ``batch_size``; the command line takes them where no flag says otherwise.
        full_recipe: What ``--full`` puts on top: the training of the source,
            where that takes long.
        shares_input: Whether :meth:`train_dataset` honours ``num_shards``, so
            that each of several workers makes only its own part of the input.
            Of any other task every worker makes all, and keeps its part.
    """

    name: ClassVar[str]
    shares_input: ClassVar[bool] = False
    recipe: ClassVar[Mapping[str, Any]] = {}
    full_recipe: ClassVar[Mapping[str, Any]] = {}

    @abc.abstractmethod
    def build(self) -> None:
        """Creates models and optimizers, and every variable they will ever have.

        In particular call ``optimizer.build(model.trainable_variables)``: a
        checkpoint is restored before the first step, so the optimizer's slots
        must exist by then.
        """

    @property
    @abc.abstractmethod
    def root(self) -> tf.Module:
        """The module that holds every variable the signatures use; export saves it."""

    @abc.abstractmethod
    def trackables(self) -> Mapping[str, Any]:
        """What checkpoints hold, by name: models, optimizers, metrics, variables.

        The trainer resets ``keras.metrics`` objects before each epoch and each
        evaluation, and reads them, merged over all replicas, after it: their
        names here are those of their values. The steps only call their
        ``update_state``.

        Random state belongs here as well where it is not in a model already. A
        Keras dropout layer or a ``tf.random.Generator`` is exact after a
        resume; stateful ops such as ``tf.random.uniform`` are not, because
        TensorFlow does not let their state be saved.
        """

    @abc.abstractmethod
    def train_step(self, batch: Any) -> Mapping[str, Any]:
        """One step of training, traced into a graph.

        Args:
            batch: One element of :meth:`train_dataset`.

        Returns:
            Values to average over the epoch, ``loss`` among them. A value for
            each example, ``[B]``, makes the average exact over batches of
            different sizes; a scalar counts once for each batch. What is no
            average, such as an AUC, is a metric among :meth:`trackables`.
        """

    @abc.abstractmethod
    def eval_step(self, batch: Any) -> Mapping[str, Any]:
        """One step of evaluation, traced into a graph.

        Args:
            batch: One element of :meth:`eval_dataset`.

        Returns:
            Values to average over the data set, as for :meth:`train_step`.
        """

    @abc.abstractmethod
    def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """The batches of one epoch, a pure function of the request.

        That purity is what exact resume rests on: asked again with
        ``skip_batches``, it must give the same batches less the first ones.
        Its length must be known to ``Dataset.cardinality``.

        Args:
            request: Which part of which epoch.
        """

    @abc.abstractmethod
    def eval_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """The batches to evaluate on; its length must be known.

        Args:
            request: The batch size, and ``drop_remainder``; the other fields are at their defaults.
        """

    @abc.abstractmethod
    def signatures(self) -> Mapping[str, AnyFunction]:
        """The functions to serve, by signature name, over the built models."""

    @abc.abstractmethod
    def verification_data(self, count: int) -> VerificationData:
        """Real examples that every exported format must agree on.

        Args:
            count: How many, at most.
        """

    def resident_data(self, request: InputRequest) -> ResidentData | None:
        """The training data as tensors, for the loop form ``epoch``.

        Args:
            request: The batch size and the seed.

        Returns:
            None, the default, makes the trainer read the batches of the first
            epoch of :meth:`train_dataset` into memory: what is random in the
            input, but the order, then happens once.
        """
        return None

    @classmethod
    def search_space(cls, trial: Any) -> Mapping[str, Any]:
        """The hyperparameters that ``modelyard tune`` searches where no flag names any.

        Args:
            trial: An ``optuna.Trial``; ``trial.suggest_float(...)`` and its like
                choose the values.

        Returns:
            Values by name: arguments of the task's constructor, or fields of
            ``TrainerOptions`` such as ``batch_size``. The default has none.
        """
        return {}

    def pictures(self) -> Mapping[str, Any]:
        """What the models make at this moment, to look at while they train.

        Returns:
            Pixels by name, uint8 ``[H, W]`` or ``[H, W, 3]``. The default has none.
        """
        return {}

    def measurements(self) -> Mapping[str, float]:
        """Numbers that cost more than a step of evaluation, taken where :meth:`pictures` are.

        Returns:
            Values by name. The default has none.
        """
        return {}

    def draw(self, result: TrainResult, folder: Path) -> list[Path]:
        """Draws what a finished run should be looked at for, beside its curves.

        Args:
            result: Of the run; the models are as it left them.
            folder: Where the files go.

        Returns:
            The files written. The default writes every one of :meth:`pictures` as a PNG.
        """
        from modelyard.training.plots import save_image

        written = [(folder / f"{name}.png", pixels) for name, pixels in self.pictures().items()]
        for path, pixels in written:
            save_image(pixels, path, scale=2)
        return [path for path, _ in written]

    def data_description(self) -> str:
        """A sentence that says what data the task trains on; empty where it does not know."""
        return ""
