"""What a step calls so that the trainer's options reach it: losses scaled by the global batch, and updates.

A step stays plain: it computes its losses under a ``tf.GradientTape`` and
calls :func:`minimize`, or computes gradients itself and calls
:func:`apply_gradients`. Whether a batch is shared out to replicas, cut into
micro-batches, or its gradients clipped is the trainer's business. Outside a
trainer they work as well, on the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from modelyard.errors import ConfigurationError


@dataclass(kw_only=True)
class StepContext:
    """What the trainer tells the step that it is tracing.

    ``batch_size`` counts the examples of all replicas and micro-batches, int64 ``[]``, ``parts`` the micro-batches of
    this replica's share. ``updates`` is where updates wait for the last micro-batch; None applies them at once.
    """

    batch_size: tf.Tensor
    parts: tf.Tensor = 1
    clip_norm: float | None = None
    updates: list[Update] | None = None
    used: bool = False
    training: bool = True


@dataclass(frozen=True, kw_only=True)
class Update:
    """Gradients that wait to be applied."""

    optimizer: keras.Optimizer
    gradients: list[tf.Tensor]
    variables: list[tf.Variable]


_CONTEXT: ContextVar[StepContext | None] = ContextVar("modelyard_training_step", default=None)


def is_training() -> bool:
    """Whether the step that runs is one of training, as outside of any step."""
    context = _CONTEXT.get()
    return context is None or context.training


def evaluation(step: Callable[[Any], Mapping[str, tf.Tensor]]) -> Callable[[Any], Mapping[str, tf.Tensor]]:
    """A step of evaluation, in which :func:`minimize` and :func:`apply_gradients` do nothing."""

    def evaluated(batch: object) -> Mapping[str, tf.Tensor]:
        context = _CONTEXT.get()
        if context is not None:
            context.training = False
        return step(batch)

    return evaluated


def average_loss(per_example: tf.Tensor, *, sample_weight: tf.Tensor | None = None) -> tf.Tensor:
    """The loss to minimize: the average over the global batch, this replica's and micro-batch's share of it.

    Added up over replicas and micro-batches it is the mean over all examples, also where the last batch is smaller
    and shared out unevenly. ``tf.reduce_mean`` is not: it weighs small shares too heavily.

    Args:
        per_example: Loss of each example of the batch, ``[B]``; or of each place in it, such as ``[B, H, W]``, which
            is averaged over the places.
        sample_weight: Weights of the examples, ``[B]``, or of the places in them, such as ``[B, H, W]``.

    Returns:
        A scalar.

    Raises:
        ConfigurationError: ``per_example`` is a scalar, or the weights do not fit it.
    """
    losses = tf.convert_to_tensor(per_example)
    if losses.shape.rank == 0:
        raise refusal(
            "average_loss received a scalar; expected the loss of each example, [B, ...]. "
            "Leave out the reduction, such as with keras.losses.MeanSquaredError(reduction=None)."
        )
    losses = tf.cast(losses, tf.float32)
    if sample_weight is not None:
        losses = weighted(losses, sample_weight)
    losses = tf.reduce_mean(losses, axis=list(range(1, losses.shape.rank)))
    context = _CONTEXT.get()
    size = all_replicas(tf.shape(losses, out_type=tf.int64)[0]) if context is None else context.batch_size
    return tf.nn.compute_average_loss(losses, global_batch_size=size)


def weighted(losses: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Losses ``[B, ...]`` times weights, whose axes are the first ones of the losses'."""
    factors = tf.cast(weights, losses.dtype)
    rank, own = losses.shape.rank, factors.shape.rank
    if rank is not None and own is not None and own <= rank:
        # TensorFlow by itself takes the last axes: [B] would weight the places of [B, T] wherever T is B, or B is 1.
        factors = factors[(..., *[tf.newaxis] * (rank - own))]
        with suppress(ValueError):
            if tf.broadcast_static_shape(losses.shape, factors.shape).is_compatible_with(losses.shape):
                return losses * factors
    raise refusal(
        f"Received weights of shape {factors.shape} for losses of shape {losses.shape}; expected one for each example, "
        "[B], or the shape of the losses. Reshape them in the data, such as weights[:, 0] for [B, 1]."
    )


def regularization_loss(losses: Sequence[tf.Tensor]) -> tf.Tensor:
    """The sum of scalar losses that belong to no example, such as ``model.losses``, scaled so that they count once.

    It is divided by the number of replicas and micro-batches; 0 where there are none.
    """
    context = _CONTEXT.get()
    parts = 1 if context is None else context.parts
    if not losses:
        return tf.constant(0.0)
    total = tf.add_n([tf.cast(loss, tf.float32) for loss in losses])
    return tf.nn.scale_regularization_loss(total) / tf.cast(parts, tf.float32)


def minimize(
    loss: tf.Tensor, variables: Sequence[tf.Variable], *, optimizer: keras.Optimizer, tape: tf.GradientTape
) -> None:
    """Takes one step of an optimizer down a loss.

    Args:
        loss: Scalar, from :func:`average_loss`, computed under the tape.
        variables: What to update, among those the optimizer was built with.
        optimizer: A Keras optimizer; one in a ``LossScaleOptimizer`` scales the loss as well.
        tape: The ``tf.GradientTape``, no longer recording; persistent where it is used for several losses.
    """
    if not is_training():
        return
    with tape:
        scaled = optimizer.scale_loss(loss)
    apply_gradients(optimizer, tape.gradient(scaled, variables), variables)


def apply_gradients(
    optimizer: keras.Optimizer, gradients: Sequence[tf.Tensor | None], variables: Sequence[tf.Variable]
) -> None:
    """Applies gradients as the trainer was told to: at once, or when the last micro-batch is through; clipped or not.

    Args:
        optimizer: A Keras optimizer.
        gradients: Of a loss from :func:`average_loss`; None for a variable that has none.
        variables: One for each gradient.

    Raises:
        ConfigurationError: Micro-batches are accumulated, and the step updates one variable twice; or the numbers of
            gradients and variables differ.
    """
    gradients, variables = list(gradients), list(variables)
    if len(gradients) != len(variables):
        raise refusal(
            f"apply_gradients received {len(gradients)} gradients for {len(variables)} variables; "
            "expected one for each."
        )
    if not is_training():
        return
    context = _CONTEXT.get()
    update = Update(optimizer=optimizer, gradients=gradients, variables=variables)
    if context is None:
        apply(update, clip_norm=None)
        return
    context.used = True
    if context.updates is None:
        apply(update, clip_norm=context.clip_norm)
        return
    seen = {id(variable) for earlier in context.updates for variable in earlier.variables}
    if any(id(variable) in seen for variable in variables):
        raise refusal(
            "The step updates a variable twice, but with accumulate_steps above 1 every update waits for the last "
            "micro-batch, so that the second one would not see the first. Use accumulate_steps=1."
        )
    context.updates.append(update)


def loss_scaled(optimizer: keras.Optimizer) -> keras.Optimizer:
    """Wraps an optimizer, not built yet, for float16, whose small gradients would vanish; in other precisions a no-op.

    Float16 is what Keras' dtype policy computes in, as in :meth:`Task.build` of a run with precision ``mixed_float16``;
    the wrapper is ``keras.optimizers.LossScaleOptimizer``.
    """
    if keras.config.dtype_policy().compute_dtype == "float16":
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


def refusal(message: str) -> ConfigurationError:
    """An error that a step can raise while it is traced."""
    error = ConfigurationError(message)
    # AutoGraph, which this rises through, would put another error in its place.
    error.ag_pass_through = True  # type: ignore[attr-defined]
    return error


@contextmanager
def entered(context: StepContext) -> Iterator[None]:
    """Makes a step that is traced inside see the context."""
    # Entered inside of a replica's own thread, which context variables do not reach from outside.
    token = _CONTEXT.set(context)
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def apply(update: Update, *, clip_norm: float | None) -> None:
    """Applies gradients, scaled down to a global norm."""
    gradients = update.gradients
    if clip_norm is not None:
        present = [gradient for gradient in gradients if gradient is not None]
        replica = tf.distribute.get_replica_context()
        whole = present
        if replica is not None and replica.num_replicas_in_sync > 1:
            # The norm is that of the sum over replicas, which the optimizer makes only later.
            whole = replica.all_reduce(tf.distribute.ReduceOp.SUM, present)
        norm = tf.linalg.global_norm(whole)
        if isinstance(update.optimizer, keras.optimizers.LossScaleOptimizer):
            norm /= tf.cast(tf.convert_to_tensor(update.optimizer.dynamic_scale), norm.dtype)
        factor = clip_norm / tf.maximum(norm, clip_norm)
        gradients = [
            None if gradient is None else _scaled(gradient, tf.cast(factor, gradient.dtype)) for gradient in gradients
        ]
    update.optimizer.apply(gradients, update.variables)


def _scaled(gradient: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def all_replicas(count: tf.Tensor, replicas: int | None = None) -> tf.Tensor:
    """The sum of a number over all replicas."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1 or replicas == 1:
        return count
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, count)
