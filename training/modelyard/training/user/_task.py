"""The task: what the user owns. Models, optimizers, losses and one step."""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from modelyard.artifact import AnyFunction, VerificationData
from modelyard.errors import ConfigurationError
from modelyard.training.user._remember import RemembersArguments

if TYPE_CHECKING:
    from pathlib import Path

    import tensorflow as tf

    from modelyard.training.data import DataSource
    from modelyard.training.loop import ResidentData
    from modelyard.training.run import TrainResult


@dataclass(frozen=True, kw_only=True)
class InputRequest:
    """What the trainer asks of an input function: one epoch, or the remainder of one.

    Attributes:
        batch_size: Examples in each batch; the last one may be smaller.
        seed: Seed of everything random in the input.
        epoch: Number of the epoch, from 0.
        skip_batches: Batches at the start of the epoch to leave out: an earlier run has trained on them.
        num_shards: Workers that share the epoch, each with an input of its own. The batches of all workers with the
            same number make one global batch of ``num_shards * batch_size`` examples, the same examples that one
            worker with that batch size would get.
        shard_index: Which of them this is, from 0.
        drop_remainder: Leaves out the examples at the end that fill no batch: all batches have the same static shape.
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

    A task needs :meth:`build` and :meth:`train_step`; all else has a default. The trainer calls :meth:`build` once,
    then traces :meth:`train_step` and :meth:`eval_step` into compiled loops. Steps are written for one replica, with
    ``tf.GradientTape``, and may use any number of models, optimizers and losses.

    Attributes:
        name: What the command line, logs and manifests call the task; by default made of the class's own name,
            ``photos`` of ``PhotosTask``.
        train: What to train on: a ``tf.data.Dataset``, arrays, or a :class:`modelyard.training.data.DataSource` such
            as ``ImageFolder(path)``.
        test: What to evaluate on, of the same kinds.
        preprocess: From pixels, uint8 ``[H, W, 1 or 3]`` of any size, to one example of the model's input; adds the
            signature ``image_bytes``. None takes that of the data, where it is of images.
        recipe: Fields of ``TrainerOptions`` that suit the task, such as ``batch_size``; defaults of its runs.
        full_recipe: What ``--full`` puts on top: the training of the source, where that takes long.

    Example:
        >>> class Photos(Task):
        ...     train, test = ImageFolder("photos/train"), ImageFolder("photos/test")
        ...
        ...     def build(self):
        ...         self.model = make_network(classes=len(self.train.class_names))
        ...         self.optimizer = keras.optimizers.Adam()
        ...
        ...     def train_step(self, batch):
        ...         images, labels = batch
        ...         with tf.GradientTape() as tape:
        ...             losses = cross_entropy(labels, self.model(images, training=self.training))
        ...             loss = average_loss(losses)
        ...         minimize(loss, self.model.trainable_variables, optimizer=self.optimizer, tape=tape)
        ...         return {"loss": losses}
    """

    name: ClassVar[str] = ""
    train: Any = None
    test: Any = None
    preprocess: Callable[[tf.Tensor], tf.Tensor] | None = None
    recipe: ClassVar[Mapping[str, Any]] = {}
    full_recipe: ClassVar[Mapping[str, Any]] = {}
    _named_by_class: ClassVar[bool]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        owner = next(base for base in cls.__mro__ if "name" in vars(base))
        # A name that was set is inherited; one that was made of a class's own is not.
        if owner is Task or "_named_by_class" in vars(owner):
            cls._named_by_class = True
            words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", cls.__name__.removesuffix("Task"))
            cls.name = "_".join(words).lower() or "task"

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):
            # A property of the class has failed: its own error says why.
            return object.__getattribute__(self, name)
        raise AttributeError(
            f"The task {self.name!r} has no {name!r}. What build() makes is there after build(), Trainer.run() or "
            "restore()."
        )

    @abc.abstractmethod
    def build(self) -> None:
        """Creates models, optimizers and metrics as attributes, and every variable they will ever have.

        A checkpoint is restored before the first step. The slots of a single optimizer are made for it where a single
        model is there; of several call ``optimizer.build(model.trainable_variables)`` here.
        """

    @abc.abstractmethod
    def train_step(self, batch: Any) -> Mapping[str, Any]:
        """One step of training, traced into a graph, on one element of :meth:`train_dataset`.

        Returns:
            Values to average over the epoch, ``loss`` among them. A value for each example, ``[B]``, makes the average
            exact over batches of different sizes; a scalar counts once for each batch. What is no average, such as an
            AUC, is a ``keras.metrics`` object among :attr:`models`.
        """

    @property
    def models(self) -> Mapping[str, Any]:
        """What is saved, averaged, checked for finite numbers and exported, by name.

        By default every attribute that holds variables: models, layers and modules, optimizers, metrics, random
        generators and variables, alone or in lists and mappings.

        The steps only call ``update_state`` of ``keras.metrics`` objects. The trainer resets them before each
        evaluation and after it, and reads them, merged over all replicas, at its end, by their names here.

        A Keras dropout layer or a ``tf.random.Generator`` is exact after a resume; stateful ops such as
        ``tf.random.uniform`` are not, because TensorFlow does not let their state be saved.
        """
        from modelyard.training.user._defaults import find_models

        return find_models(vars(self))

    @property
    def exported(self) -> Mapping[str, Any]:
        """What an export saves for the signatures: of :attr:`models` all but optimizers, metrics and generators.

        Raises:
            TrainingError: :meth:`build` was not called.
        """
        from modelyard.training.user._defaults import exported_models

        return exported_models(self)

    @property
    def training(self) -> bool:
        """Whether the step that runs is one of training, for ``model(x, training=self.training)``."""
        from modelyard.training.user._step import is_training

        return is_training()

    @property
    def shares_input(self) -> bool:
        """Whether :meth:`train_dataset` honours ``num_shards``; a task that writes :meth:`train_dataset` says it here.

        Of any other task every worker makes all of the input, and keeps its part.
        """
        own = type(self).train_dataset is Task.train_dataset and self.train is not None
        return own and self.data_source("train").shares

    def eval_step(self, batch: Any) -> Mapping[str, Any]:
        """One step of evaluation on :meth:`eval_dataset`: by default :meth:`train_step`, which then updates nothing.

        Raises:
            ConfigurationError: The step updates variables by itself, or calls a model with ``training=True``.
        """
        from modelyard.training.user._defaults import step_without_updates

        return step_without_updates(self, batch)

    def data_source(self, split: str) -> DataSource:
        """What :attr:`train` or :attr:`test`, the ``split``, holds, fitted to the model's input.

        Raises:
            ConfigurationError: There is none, or it is of no known kind.
        """
        from modelyard.training.user._defaults import fitted_source

        return fitted_source(self, split)

    def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """The batches of one epoch, of known length: a pure function of the request.

        Exact resume rests on that purity: with ``skip_batches`` it must return the same batches less the first ones.
        """
        return self.data_source("train").batches(request)

    def eval_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """The batches to evaluate on, of known length; a request says the batch size, and ``drop_remainder``."""
        return self.data_source("test").batches(request, training=False)

    def resident_data(self, request: InputRequest) -> ResidentData | None:
        """The training data as tensors, for ``loop="epoch"``; a request says the batch size and the seed.

        None makes the trainer read the batches of the first epoch of :meth:`train_dataset` into memory: what is random
        in the input, but the order, then happens once.
        """
        return None if self.train is None else self.data_source("train").resident(request)

    def predict(self, inputs: Any) -> Mapping[str, Any]:
        """What the signature ``serving_default`` computes of inputs ``[B, ...]``.

        By default the first model's outputs, by their names; a single tensor is called ``output``, whatever its layer
        is. Of a classifier ``class_id``, ``probabilities`` and, where the data names its classes, ``label``: its
        outputs are taken for logits where no softmax ends it, and the loss of a :class:`SupervisedTask` is not one of
        probabilities.
        """
        from modelyard.training.user._defaults import predict

        return predict(self, inputs)

    def signatures(self) -> Mapping[str, AnyFunction]:
        """The functions to serve, by signature name, over the built models.

        By default ``serving_default``, which is :meth:`predict`; ``image_bytes`` where the data is of images or there
        is a :attr:`preprocess`; and ``examples`` where the data is of serialized ``tf.Example`` messages.

        Raises:
            ConfigurationError: The input of the first model is not known.
        """
        from modelyard.training.user._defaults import make_signatures

        return make_signatures(self)

    def verification_data(self, count: int) -> VerificationData:
        """Real examples that every exported format must agree on: by default of :attr:`test`, then of :attr:`train`.

        Args:
            count: How many, at most.

        Raises:
            ConfigurationError: ``count`` is below 1, or the data is not what the signatures take.
        """
        from modelyard.training.user._defaults import make_verification_data

        return make_verification_data(self, count)

    @classmethod
    def search_space(cls, trial: Any) -> Mapping[str, Any]:
        """The hyperparameters that ``modelyard tune`` searches where no flag names any; none by default.

        Args:
            trial: An ``optuna.Trial``; ``trial.suggest_float(...)`` and its like choose the values.

        Returns:
            Values by name: arguments of the task's constructor, or fields of ``TrainerOptions`` such as ``batch_size``.
        """
        return {}

    def pictures(self) -> Mapping[str, Any]:
        """Images that the models make at this moment, uint8 ``[H, W]`` or ``[H, W, 3]`` by name; none by default."""
        return {}

    def measurements(self) -> Mapping[str, float]:
        """Numbers that cost more than a step of evaluation, by name, taken where :meth:`pictures` are."""
        return {}

    def draw(self, result: TrainResult, folder: Path) -> list[Path]:
        """Draws what a finished run should be looked at for, beside its curves; by default each of :meth:`pictures`.

        Args:
            result: Of the run; the models are as it left them.
            folder: Where the files go.

        Returns:
            The files written.
        """
        from modelyard.training.plots import save_image

        written = [(folder / f"{name}.png", pixels) for name, pixels in self.pictures().items()]
        for path, pixels in written:
            save_image(pixels, path, scale=2)
        return [path for path, _ in written]

    def data_description(self) -> str:
        """A sentence that says what data the task trains on; empty where it does not know."""
        return "; ".join(
            f"{split}: {self.data_source(split).description}"
            for split in ("train", "test")
            if getattr(self, split) is not None
        )


def need_task(value: object) -> None:
    """Refuses what is no task, such as a model, the result of a run, or a class that was not called.

    Raises:
        ConfigurationError: It is none.
    """
    if not isinstance(value, Task):
        received = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        raise ConfigurationError(
            f"The task is {received}; expected a Task, such as SupervisedTask(model, loss=..., train=..., test=...), "
            "or the .task of a result."
        )
