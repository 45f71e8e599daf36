"""A task without a class: a model, a loss and data."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training.user._step import (
    average_loss,
    loss_scaled,
    minimize,
    refusal,
    regularization_loss,
    weighted,
)
from modelyard.training.user._task import Task

#: A step of the user's: called with the task and a batch, it returns what :meth:`Task.train_step` does.
Step = Callable[["SupervisedTask", Any], Mapping[str, tf.Tensor]]


class SupervisedTask(Task):
    """Trains a Keras model on pairs of inputs and labels.

    Args:
        model: A Keras model, or a function that makes one. A function is called under the run's seed, precision
            and strategy, so give one where you use other ones than the defaults.
        loss: A Keras loss, its name, or a function of labels and outputs that returns a loss for each example.
        train: What to train on: a ``tf.data.Dataset`` (of known or unknown length or endless, batched or not),
            arrays ``(inputs, labels)``, ``ImageFolder(path)`` or ``Records(pattern)``.
        test: What to evaluate on, of the same kinds.
        metrics: Beside the loss: ``"accuracy"``, ``keras.metrics`` objects, or functions of labels and outputs
            that return a value for each example; one of them, a list, or a mapping from names of your own.
        optimizer: A Keras optimizer, or its name. Each run makes one of the same configuration.
        step: Replaces the step: called with this task and a batch, it returns ``{"loss": ...}``. It has
            ``task.model``, ``task.optimizer``, :meth:`losses` and :meth:`measure`.
        name: What logs, checkpoints and manifests call the task.

    Raises:
        ConfigurationError: The model is no Keras model and no function; Keras knows no such loss, metric or optimizer;
            two metrics have one name; or a metric or optimizer of a class of your own leaves arguments out of its
            ``get_config()``.

    Example:
        >>> task = SupervisedTask(model, loss="mse", train=(x, y), test=(x_test, y_test))
        >>> Trainer(task, epochs=3).run().export("models/line")
    """

    def __init__(
        self,
        model: keras.Model | Callable[[], keras.Model],
        *,
        loss: Any,
        train: Any,
        test: Any,
        metrics: Any = (),
        optimizer: keras.Optimizer = "adam",
        step: Step | None = None,
        name: str = "supervised",
    ) -> None:
        self.name = name  # type: ignore[misc]
        self.train, self.test = train, test
        self._given = isinstance(model, keras.Model)
        # Other layers are functions, too, but not of nothing.
        if not self._given and (isinstance(model, keras.Layer) or not callable(model)):
            raise ConfigurationError(f"model is {model!r}; expected a Keras model, or a function that makes one.")
        self._model: Any = (lambda: model) if self._given else model
        self._loss = _unreduced(_known("loss", keras.losses.get, loss))
        # Made anew in each run, in its scope: what is not there yet is no part of the task's models.
        self._make_optimizer = _maker(_known("optimizer", keras.optimizers.get, optimizer))
        named = _named(metrics)
        self._make_metrics = {n: _maker(item) for n, item in named.items() if isinstance(item, keras.metrics.Metric)}
        self._functions = {n: item for n, item in named.items() if n not in self._make_metrics}
        self._step = step

    def build(self) -> None:
        """Makes the model, where it is not there yet, its optimizer and its metrics.

        Raises:
            ConfigurationError: The model was made outside of the run's strategy or precision; the function that makes
                it returned something else; or a metric cannot compare its outputs with the labels.
        """
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if self._given and (replicas > 1 or keras.config.dtype_policy().name != "float32"):
            raise ConfigurationError(
                f"The model of task {self.name!r} was made before the run, which has {replicas} replicas and precision "
                f"{keras.config.dtype_policy().name}. Give a function that makes it: SupervisedTask(make_model, ...)."
            )
        made = self._model()
        if not isinstance(made, keras.Layer):
            raise ConfigurationError(
                f"The function that makes the model of task {self.name!r} returned {made!r}; expected a Keras model."
            )
        self.model: Any = made
        if not (self.model.built and self.model.weights):
            self.model(_zeros(self.data_source("train").inputs_spec))
        self.optimizer = loss_scaled(self._make_optimizer())
        self.optimizer.build(self.model.trainable_variables)
        self.metrics = {name: make() for name, make in self._make_metrics.items()}
        for name, metric in self.metrics.items():
            # Some make their variables with their first values, and a checkpoint is restored before them.
            inputs, labels, *_ = (_zeros(part) for part in self._parts(self.data_source("train").element_spec))
            outputs = self.model(inputs, training=False)
            try:
                metric.update_state(labels, outputs)
            except (TypeError, ValueError, tf.errors.InvalidArgumentError) as exc:
                raise ConfigurationError(
                    f"Metric {name!r} of task {self.name!r} cannot compare labels {_said(labels)} with outputs "
                    f"{_said(outputs)}: {exc} A function of labels and outputs in its place can bring them into the "
                    "form that it takes."
                ) from exc
            metric.reset_state()

    def train_step(self, batch: tuple[tf.Tensor, ...]) -> Mapping[str, tf.Tensor]:
        """One step on the mean loss of ``(inputs, labels)`` or ``(inputs, labels, weights)``; or the one given.

        Weights are of the examples, ``[B]``, or of each of their losses, such as ``[B, T]`` of sequences.

        Returns:
            ``loss``, times the weights, and the metrics that are functions, of each example, float32 ``[B]``.

        Raises:
            ConfigurationError: The batch is of other parts, or its weights do not fit the losses; or there are metrics,
                and the step that was given leaves them out.
        """
        if self._step is not None:
            self._measured = not (self.metrics or self._functions)
            values = self._step(self, batch)
            if not self._measured:
                raise refusal(
                    f"The step of task {self.name!r} leaves its metrics out. Let it return "
                    "{'loss': losses, **task.measure(labels, outputs)}."
                )
            return values
        inputs, labels, *weights = self._parts(batch)
        weight = weights[0] if weights else None
        with tf.GradientTape() as tape:
            outputs = self.model(inputs, training=self.training)
            losses = self.losses(labels, outputs)
            if weight is not None:
                losses = weighted(losses, weight)
            loss = average_loss(losses) + regularization_loss(self.model.losses)
        minimize(loss, self.model.trainable_variables, optimizer=self.optimizer, tape=tape)
        return {"loss": losses, **self.measure(labels, outputs, sample_weight=weight)}

    def _parts(self, batch: Any) -> Any:
        if isinstance(batch, tuple | list) and len(batch) in (2, 3):
            return batch
        received = f"{len(batch)} parts" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
        raise refusal(
            f"The data of task {self.name!r} has batches of {received}; expected (inputs, labels), or (inputs, labels, "
            "weights). Inputs that are their own labels are given twice, train=(x, x); for anything else write a step="
        )

    def measure(
        self, labels: tf.Tensor, outputs: tf.Tensor, *, sample_weight: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Updates the metrics that are objects, and returns the values of the functions: for a step of your own.

        Args:
            labels: ``[B, ...]``.
            outputs: Of the model.
            sample_weight: For the objects, ``[B]``.

        Returns:
            The values of the functions by name, float32 ``[B]``.
        """
        self._measured = True
        for metric in self.metrics.values():
            metric.update_state(labels, outputs, sample_weight=sample_weight)
        return {name: function(labels, outputs) for name, function in self._functions.items()}

    def losses(self, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """The loss of each example, of labels ``[B, ...]``: float32 ``[B]``, or ``[B, ...]`` where each has several.

        Raises:
            ConfigurationError: The loss is of the whole batch.
        """
        values = tf.cast(self._loss(labels, tf.nest.map_structure(_full, outputs)), tf.float32)
        if values.shape.rank == 0:
            raise refusal(
                f"The loss of task {self.name!r} is a scalar; expected one for each example, [B], not reduced."
            )
        return values


def accuracy(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Whether the greatest of each ``C`` outputs is its label's, a class or one-hot: 1 or 0.

    Args:
        labels: Classes ``[B]``, or ``[B, T]`` of sequences, also with a last axis of 1; or one-hot, as the outputs.
        outputs: ``[B, C]``, or ``[B, T, C]``.

    Returns:
        Float32 ``[B]``, or ``[B, T]``.

    Raises:
        ConfigurationError: There is one output, or the labels are not as many as the outputs' classes.
    """
    if outputs.shape.rank == 1 or outputs.shape[-1] == 1:
        raise refusal(
            "The metric 'accuracy' is for an output for each class; of one output use keras.metrics.BinaryAccuracy, "
            "which is told the threshold."
        )
    one_hot = labels.shape.rank == outputs.shape.rank and labels.shape[-1] == outputs.shape[-1]
    guesses = tf.argmax(outputs, axis=-1)
    if one_hot:
        return tf.cast(guesses == tf.argmax(labels, axis=-1), tf.float32)
    # Of one example; None where a size is known only when the step runs.
    have, want = labels.shape[1:].num_elements(), guesses.shape[1:].num_elements()
    if None not in (have, want) and have != want:
        raise refusal(
            f"The metric 'accuracy' received labels of shape {labels.shape} for outputs of shape {outputs.shape}; "
            f"expected classes of shape {guesses.shape}, or one-hot labels of the outputs' shape."
        )
    return tf.cast(guesses == tf.reshape(tf.cast(labels, tf.int64), tf.shape(guesses)), tf.float32)


def _known(kind: str, get: Callable[[Any], Any], given: object) -> Any:
    try:
        found = get(given)
    except (ValueError, TypeError) as exc:
        raise ConfigurationError(f"Received {kind} {given!r}, which Keras does not know.") from exc
    if found is None:
        raise ConfigurationError(f"Received no {kind}; expected one of Keras', or a function.")
    return found


def _unreduced(loss: Any) -> Callable[[Any, Any], Any]:
    if not isinstance(loss, keras.losses.Loss):
        return loss
    each = copy.copy(loss)
    each.reduction = None
    return each


def _maker(item: Any) -> Callable[[], Any]:
    kind, config = type(item), item.get_config()
    maker, reader = (next(each for each in kind.__mro__ if name in vars(each)) for name in ("__init__", "from_config"))
    # Keras' own classes take what their get_config() returns; of the user's only those that say so.
    if not maker.__module__.startswith("keras.") and reader.__module__.startswith("keras."):
        # But self.
        parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
        named = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
        if lost := [name for name in named if name not in config]:
            raise ConfigurationError(
                f"{kind.__name__} is made with {', '.join(lost)}, which its get_config() does not return; each run "
                "makes one of its own from that. Return them: {**super().get_config(), "
                + ", ".join(f"{name!r}: ..." for name in lost)
                + "}."
            )
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            config = {name: config[name] for name in named}
    return partial(kind.from_config, config)


def _named(metrics: Any) -> dict[str, Any]:
    if isinstance(metrics, Mapping):
        return {name: _metric(item) for name, item in metrics.items()}
    found: dict[str, Any] = {}
    for item in [metrics] if isinstance(metrics, str) or callable(metrics) else metrics or ():
        metric = _metric(item)
        name = "accuracy" if metric is accuracy else str(getattr(metric, "name", None) or metric.__name__)
        # Keras counts the objects of a process: auc_1 is another name in the next one.
        name = re.sub(r"_\d+$", "", name) if isinstance(metric, keras.metrics.Metric) else name
        if name in found:
            raise ConfigurationError(
                f"Two metrics are called {name!r}; give them by name: metrics={{'a': ..., 'b': ...}}."
            )
        found[name] = metric
    return found


def _metric(item: object) -> Any:
    return accuracy if item == "accuracy" else _known("metric", keras.metrics.get, item)


def _full(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, tf.float32) if tensor.dtype in (tf.float16, tf.bfloat16) else tensor


def _said(value: object) -> str:
    return ", ".join(f"{part.dtype.name} {list(part.shape)}" for part in tf.nest.flatten(value))


def _zeros(spec: object) -> Any:
    return tf.nest.map_structure(lambda part: tf.zeros([1 if s is None else s for s in part.shape], part.dtype), spec)
