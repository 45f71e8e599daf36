"""One step of one replica: on its share of a batch, in micro-batches or on several devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from modelyard.training.user._step import StepContext, Update, all_replicas, apply, entered, refusal

#: From a batch to ``(sums, examples)``: float64 ``[names, 2]``, sum and count of each value, and int64 ``[]``.
ReplicaStep = Callable[[object], tuple[tf.Tensor, tf.Tensor]]


@dataclass(kw_only=True)
class StepReport:
    """What tracing a step has shown: the sorted names of its values, and whether it used our updates of variables."""

    names: tuple[str, ...] = ()
    updates: bool = False
    returned: object = field(default=None)


def make_replica_step(
    step: Callable[[Any], Mapping[str, tf.Tensor]],
    report: StepReport,
    *,
    accumulate_steps: int = 1,
    clip_norm: float | None = None,
    replicas: int = 1,
    devices: Sequence[str] = (),
    jit_compile: bool = False,
) -> ReplicaStep:
    """One step of one replica, reduced to what can be added up over replicas and steps."""

    def whole(batch: object) -> tuple[tf.Tensor, tf.Tensor]:
        examples = _examples(batch)
        context = StepContext(batch_size=all_replicas(examples, replicas), clip_norm=clip_norm)
        with entered(context):
            sums = _sums(step(batch), report)
        report.updates = context.used
        return sums, examples

    def in_parts(batch: object) -> tuple[tf.Tensor, tf.Tensor]:
        examples = _examples(batch)
        # Never an empty part, unless the replica itself got nothing.
        parts = tf.clip_by_value(examples, 1, accumulate_steps)
        size = all_replicas(examples, replicas)

        def part(index: tf.Tensor) -> tuple[tf.Tensor, list[Update]]:
            context = StepContext(batch_size=size, parts=parts, updates=[])
            with entered(context):
                sums = _sums(step(_part(batch, index, parts, examples, accumulate_steps)), report)
            report.updates = context.used
            return sums, context.updates or []

        def add(
            index: tf.Tensor, sums: tf.Tensor, gradients: list[tf.Tensor]
        ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
            more, updates = part(index)
            return index + 1, sums + more, [a + b for a, b in zip(gradients, _dense(updates), strict=True)]

        sums, updates = part(tf.constant(0, tf.int64))
        state = (tf.constant(1, tf.int64), sums, _dense(updates))
        _, sums, gradients = tf.while_loop(lambda index, *_: index < parts, add, state)
        rest = iter(gradients)
        for update in updates:
            added = [None if gradient is None else next(rest) for gradient in update.gradients]
            apply(Update(optimizer=update.optimizer, gradients=added, variables=update.variables), clip_norm=clip_norm)
        return sums, examples

    def on_devices(batch: object) -> tuple[tf.Tensor, tf.Tensor]:
        examples = _examples(batch)
        sums, updates = [], []
        for number, device in enumerate(devices):
            with tf.device(device):
                context = StepContext(batch_size=examples, parts=len(devices), updates=[])
                with entered(context):
                    share = _part(batch, number, len(devices), examples, len(devices))
                    sums.append(_sums(step(share), report))
            report.updates = context.used
            updates.append(context.updates or [])
        with tf.device(devices[0]):
            for same in zip(*updates, strict=True):
                gradients = [_added(each) for each in zip(*(update.gradients for update in same), strict=True)]
                first = same[0]
                update = Update(optimizer=first.optimizer, gradients=gradients, variables=first.variables)
                apply(update, clip_norm=clip_norm)
            return tf.add_n(sums), examples

    def on_device(batch: object) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.device(devices[0]):
            return plain(batch)

    plain = whole if accumulate_steps == 1 else in_parts
    made = on_devices if len(devices) > 1 else on_device if devices else plain
    return tf.function(made, jit_compile=True) if jit_compile else made


def _added(gradients: Sequence[tf.Tensor | None]) -> tf.Tensor:
    """The sum of what devices found for one variable."""
    present = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    return tf.add_n(present) if present else None


def _dense(updates: list[Update]) -> list[tf.Tensor]:
    return [
        tf.convert_to_tensor(gradient) for update in updates for gradient in update.gradients if gradient is not None
    ]


def _part(batch: object, index: tf.Tensor, parts: tf.Tensor, examples: tf.Tensor, count: int) -> object:
    def cut(tensor: tf.Tensor) -> tf.Tensor:
        size = tensor.shape[0]
        if size is not None and size % count == 0:
            # Parts of a shape that is known when the step is traced.
            return tf.reshape(tensor, [count, size // count, *tensor.shape[1:]])[index]
        return tensor[examples * index // parts : examples * (index + 1) // parts]

    return tf.nest.map_structure(cut, batch)


def _sums(outputs: object, report: StepReport) -> tf.Tensor:
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


def _sum_and_count(values: tf.Tensor) -> tf.Tensor:
    # float64: the average over an epoch must not depend on how many values went before.
    return tf.stack([tf.reduce_sum(tf.cast(values, tf.float64)), tf.cast(tf.size(values), tf.float64)])


def _examples(batch: object) -> tf.Tensor:
    return tf.shape(tf.nest.flatten(batch)[0], out_type=tf.int64)[0]
