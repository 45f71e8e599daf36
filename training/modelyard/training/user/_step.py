"""What a step calls so that the trainer's options reach it: losses scaled by the global batch, and updates.

A step stays plain: it computes its losses under a ``tf.GradientTape`` and
calls :func:`minimize`, or computes gradients itself and calls
:func:`apply_gradients`. Whether a batch is shared out to replicas, cut into
micro-batches, or its gradients clipped is the trainer's business. Outside a
trainer they work as well, on the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from modelyard.errors import ConfigurationError

#: From a batch to ``(sums, examples)``: float64 ``[names, 2]``, sum and count of each value, and int64 ``[]``.
ReplicaStep = Callable[[Any], tuple[Any, Any]]


@dataclass(kw_only=True)
class StepContext:
    """What the trainer tells the step that it is tracing.

    Attributes:
        batch_size: Examples of the whole step: of all replicas and micro-batches; int64 ``[]``.
        parts: Into how many micro-batches this replica's share was cut.
        clip_norm: Greatest global norm of the gradients of one update; None for any.
        updates: Where updates wait for the last micro-batch; None applies them at once.
        used: Whether the step asked for an update.
        training: Whether updates are made at all.
    """

    batch_size: Any
    parts: Any = 1
    clip_norm: float | None = None
    updates: list[Update] | None = None
    used: bool = False
    training: bool = True


@dataclass(frozen=True, kw_only=True)
class Update:
    """Gradients that wait to be applied."""

    optimizer: Any
    gradients: list[Any]
    variables: list[Any]


_CONTEXT: ContextVar[StepContext | None] = ContextVar("modelyard_training_step", default=None)


def is_training() -> bool:
    """Whether the step that runs is one of training, as outside of any step."""
    context = _CONTEXT.get()
    return context is None or context.training


def evaluation(step: Callable[[Any], Mapping[str, Any]]) -> Callable[[Any], Mapping[str, Any]]:
    """A step that knows that it is one of evaluation, in which :func:`minimize` and :func:`apply_gradients` do nothing.

    Args:
        step: ``eval_step`` of a task; called by a device loop.
    """

    def evaluated(batch: Any) -> Mapping[str, Any]:
        context = _CONTEXT.get()
        if context is not None:
            context.training = False
        return step(batch)

    return evaluated


def average_loss(per_example: Any, *, sample_weight: Any = None) -> Any:
    """The loss to minimize: the average over the global batch, this replica's and micro-batch's share of it.

    Added up over replicas and micro-batches it is the mean over all examples,
    also where the last batch is smaller and shared out unevenly. What
    ``tf.reduce_mean`` gives is not: it weighs small shares too heavily.

    Args:
        per_example: Loss of each example of the batch, ``[B]``; or of each
            place in it, such as ``[B, H, W]``, which is averaged over the places.
        sample_weight: Weights, of a shape that broadcasts to that of the losses.

    Returns:
        A scalar.

    Raises:
        ConfigurationError: ``per_example`` is a scalar.
    """
    losses = tf.convert_to_tensor(per_example)
    if losses.shape.rank == 0:
        raise refusal(
            "average_loss received a scalar; expected the loss of each example, [B, ...]. "
            "Leave out the reduction, such as with keras.losses.MeanSquaredError(reduction=None)."
        )
    losses = tf.cast(losses, tf.float32)
    if sample_weight is not None:
        losses *= tf.cast(sample_weight, tf.float32)
    losses = tf.reduce_mean(losses, axis=list(range(1, losses.shape.rank)))
    context = _CONTEXT.get()
    size = _all_replicas(tf.shape(losses, out_type=tf.int64)[0]) if context is None else context.batch_size
    return tf.nn.compute_average_loss(losses, global_batch_size=size)


def regularization_loss(losses: Sequence[Any]) -> Any:
    """Losses that do not belong to examples, such as ``model.losses``, scaled so that they count once.

    Args:
        losses: Scalars: regularization, and what layers added.

    Returns:
        Their sum by the number of replicas and micro-batches; 0 where there are none.
    """
    context = _CONTEXT.get()
    parts = 1 if context is None else context.parts
    if not losses:
        return tf.constant(0.0)
    total = tf.add_n([tf.cast(loss, tf.float32) for loss in losses])
    return tf.nn.scale_regularization_loss(total) / tf.cast(parts, tf.float32)


def minimize(loss: Any, variables: Sequence[Any], *, optimizer: Any, tape: Any) -> None:
    """Takes one step of an optimizer down a loss.

    Args:
        loss: Scalar, from :func:`average_loss`, computed under the tape.
        variables: What to update, among those the optimizer was built with.
        optimizer: A Keras optimizer; one in a ``LossScaleOptimizer`` scales the
            loss as well.
        tape: The ``tf.GradientTape``, no longer recording. One that is used for
            several losses must be persistent.
    """
    if not is_training():
        return
    with tape:
        scaled = optimizer.scale_loss(loss)
    apply_gradients(optimizer, tape.gradient(scaled, variables), variables)


def apply_gradients(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Applies gradients as the trainer was told to: at once, or when the last micro-batch is through; clipped or not.

    Args:
        optimizer: A Keras optimizer.
        gradients: Of a loss from :func:`average_loss`; None for a variable that has none.
        variables: One for each gradient.

    Raises:
        ConfigurationError: Micro-batches are accumulated, and the step updates
            one variable twice; or the numbers of gradients and variables differ.
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
        _apply(update, clip_norm=None)
        return
    context.used = True
    if context.updates is None:
        _apply(update, clip_norm=context.clip_norm)
        return
    seen = {id(variable) for earlier in context.updates for variable in earlier.variables}
    if any(id(variable) in seen for variable in variables):
        raise refusal(
            "The step updates a variable twice, but with accumulate_steps above 1 every update waits for the last "
            "micro-batch, so that the second one would not see the first. Use accumulate_steps=1."
        )
    context.updates.append(update)


def loss_scaled(optimizer: Any) -> Any:
    """Wraps an optimizer for float16, whose small gradients would vanish; leaves it alone in any other precision.

    Args:
        optimizer: A Keras optimizer, not built yet.

    Returns:
        A ``keras.optimizers.LossScaleOptimizer`` where Keras' dtype policy
        computes in float16, as in :meth:`Task.build` of a run with precision
        ``mixed_float16``; otherwise the optimizer itself.
    """
    if keras.config.dtype_policy().compute_dtype == "float16":
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


@dataclass(kw_only=True)
class StepReport:
    """What tracing a step has shown.

    Attributes:
        names: Of the values it returns, sorted.
        updates: Whether it used :func:`minimize` or :func:`apply_gradients`.
    """

    names: tuple[str, ...] = ()
    updates: bool = False
    returned: Any = field(default=None)


def make_replica_step(
    step: Callable[[Any], Mapping[str, Any]],
    report: StepReport,
    *,
    accumulate_steps: int = 1,
    clip_norm: float | None = None,
    replicas: int = 1,
    devices: Sequence[str] = (),
    jit_compile: bool = False,
) -> ReplicaStep:
    """One step of one replica, reduced to what can be added up over replicas and steps.

    Args:
        step: Of the user.
        report: Filled in when the step is traced.
        accumulate_steps: Micro-batches to cut a batch into.
        clip_norm: Greatest global norm of the gradients.
        replicas: How many replicas take their share of each batch.
        devices: Names of the devices that compute it; several take a share of the batch each, in one graph.
        jit_compile: Whether XLA compiles it.
    """

    def whole(batch: Any) -> tuple[Any, Any]:
        examples = _examples(batch)
        context = StepContext(batch_size=_all_replicas(examples, replicas), clip_norm=clip_norm)
        with _entered(context):
            sums = _sums(step(batch), report)
        report.updates = context.used
        return sums, examples

    def in_parts(batch: Any) -> tuple[Any, Any]:
        examples = _examples(batch)
        # Never an empty part, unless the replica itself got nothing.
        parts = tf.clip_by_value(examples, 1, accumulate_steps)
        size = _all_replicas(examples, replicas)

        def part(index: Any) -> tuple[Any, list[Update]]:
            context = StepContext(batch_size=size, parts=parts, updates=[])
            with _entered(context):
                sums = _sums(step(_part(batch, index, parts, examples, accumulate_steps)), report)
            report.updates = context.used
            return sums, context.updates or []

        def add(index: Any, sums: Any, gradients: list[Any]) -> tuple[Any, Any, list[Any]]:
            more, updates = part(index)
            return index + 1, sums + more, [a + b for a, b in zip(gradients, _dense(updates), strict=True)]

        sums, updates = part(tf.constant(0, tf.int64))
        state = (tf.constant(1, tf.int64), sums, _dense(updates))
        _, sums, gradients = tf.while_loop(lambda index, *_: index < parts, add, state)
        rest = iter(gradients)
        for update in updates:
            added = [None if gradient is None else next(rest) for gradient in update.gradients]
            _apply(Update(optimizer=update.optimizer, gradients=added, variables=update.variables), clip_norm=clip_norm)
        return sums, examples

    def on_devices(batch: Any) -> tuple[Any, Any]:
        examples = _examples(batch)
        sums, updates = [], []
        for number, device in enumerate(devices):
            with tf.device(device):
                context = StepContext(batch_size=examples, parts=len(devices), updates=[])
                with _entered(context):
                    share = _part(batch, number, len(devices), examples, len(devices))
                    sums.append(_sums(step(share), report))
            report.updates = context.used
            updates.append(context.updates or [])
        with tf.device(devices[0]):
            for same in zip(*updates, strict=True):
                gradients = [_added(each) for each in zip(*(update.gradients for update in same), strict=True)]
                first = same[0]
                update = Update(optimizer=first.optimizer, gradients=gradients, variables=first.variables)
                _apply(update, clip_norm=clip_norm)
            return tf.add_n(sums), examples

    def on_device(batch: Any) -> tuple[Any, Any]:
        with tf.device(devices[0]):
            return plain(batch)

    plain = whole if accumulate_steps == 1 else in_parts
    made = on_devices if len(devices) > 1 else on_device if devices else plain
    return tf.function(made, jit_compile=True) if jit_compile else made


def _added(gradients: Sequence[Any]) -> Any:
    """The sum of what devices found for one variable."""
    present = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    return tf.add_n(present) if present else None


def refusal(message: str) -> ConfigurationError:
    """An error that a step can raise while it is traced.

    Args:
        message: What was received, expected, and what to do.
    """
    error = ConfigurationError(message)
    # AutoGraph, which this rises through, would put another error in its place.
    error.ag_pass_through = True  # type: ignore[attr-defined]
    return error


@contextmanager
def _entered(context: StepContext) -> Iterator[None]:
    # Entered inside of a replica's own thread, which context variables do not reach from outside.
    token = _CONTEXT.set(context)
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def _apply(update: Update, *, clip_norm: float | None) -> None:
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


def _scaled(gradient: Any, factor: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def _dense(updates: list[Update]) -> list[Any]:
    return [
        tf.convert_to_tensor(gradient) for update in updates for gradient in update.gradients if gradient is not None
    ]


def _part(batch: Any, index: Any, parts: Any, examples: Any, count: int) -> Any:
    def cut(tensor: Any) -> Any:
        size = tensor.shape[0]
        if size is not None and size % count == 0:
            # Parts of a shape that is known when the step is traced.
            return tf.reshape(tensor, [count, size // count, *tensor.shape[1:]])[index]
        return tensor[examples * index // parts : examples * (index + 1) // parts]

    return tf.nest.map_structure(cut, batch)


def _sums(outputs: Any, report: StepReport) -> Any:
    report.returned = outputs
    if not isinstance(outputs, Mapping) or not outputs:
        return tf.zeros([0, 2], tf.float64)
    for name, value in outputs.items():
        if isinstance(value, keras.metrics.Metric):
            raise refusal(
                f"The step returned the metric object {name!r}; expected tensors. Call its update_state in the step, "
                f"and give the object to the trainer as an attribute of the task, which reads it after the last step."
            )
    report.names = tuple(sorted(outputs))
    return tf.stack([_sum_and_count(outputs[name]) for name in report.names])


def _sum_and_count(values: Any) -> Any:
    # float64: the average over an epoch must not depend on how many values went before.
    return tf.stack([tf.reduce_sum(tf.cast(values, tf.float64)), tf.cast(tf.size(values), tf.float64)])


def _examples(batch: Any) -> Any:
    return tf.shape(tf.nest.flatten(batch)[0], out_type=tf.int64)[0]


def _all_replicas(count: Any, replicas: int | None = None) -> Any:
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1 or replicas == 1:
        return count
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, count)
