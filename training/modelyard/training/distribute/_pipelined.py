"""Pipelined model parallelism: a model in stages on several devices, fed with micro-batches.

A model that is too large for one device is cut into stages, one for each
device. A batch goes through in micro-batches, so that the stages can work at
the same time. The gradients of all micro-batches are added up before the
weights change: the result is that of the undivided step.

Which pass comes next on a stage is the schedule; F is a micro-batch forwards,
B backwards. Three stages, four micro-batches::

    sequential    F1          B1 F2          B2 ...     one micro-batch at a time
                     F1    B1       F2    B2
                        F1 B1          F2 B2
    grouped       F1 F2 F3 F4             B1 B2 B3 B4   GPipe: Huang et al., "GPipe: Efficient Training of Giant
                     F1 F2 F3 F4       B1 B2 B3 B4      Neural Networks using Pipeline Parallelism",
                        F1 F2 F3 F4 B1 B2 B3 B4         arXiv:1811.06965, 2018
    interleaved   F1 F2 F3       B1 F4 B2    B3    B4   PipeDream-flush ("1F1B"): Narayanan et al., "Memory-Efficient
                     F1 F2    B1 F3 B2 F4 B3    B4      Pipeline-Parallel DNN Training", arXiv:2006.09503, 2020
                        F1 B1 F2 B2 F3 B3 F4 B4

``grouped`` and ``interleaved`` take the same time. What a micro-batch leaves
behind on its way forwards is kept until it comes back: ``grouped`` keeps all
of them on every stage, ``interleaved`` at most as many as there are stages
from there to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training.distribute._devices import check_devices, known_devices
from modelyard.training.distribute._schedules import SCHEDULES, Pass, Schedule, issue_order, stage_order

#: A tensor, or a nest of tensors.
Nest = Any
#: From the output of the last stage and the targets of a micro-batch to a loss for each example, ``[b]``.
LossFunction = Callable[[Nest, Nest], tf.Tensor]


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """How to run a pipeline.

    Attributes:
        micro_batches: Parts that each batch is cut into; more of them leave the devices less idle, but each is smaller.
        schedule: ``sequential``, ``grouped`` or ``interleaved``.
        devices: Names of the devices, such as ``GPU:0``. Stages are shared out to them in order, neighbours together
            where there are fewer devices than stages. Empty for all GPUs, or all CPUs where there is no GPU.

    Raises:
        ConfigurationError: A value makes no sense.
    """

    micro_batches: int = 4
    schedule: Schedule = "interleaved"
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise ConfigurationError(f"micro_batches is {self.micro_batches}; expected a number >= 1.")
        if self.schedule not in SCHEDULES:
            raise ConfigurationError(f"schedule is {self.schedule!r}; expected one of {', '.join(SCHEDULES)}.")


@dataclass(frozen=True, kw_only=True)
class PipelineResult:
    """The outcome of one batch.

    Attributes:
        losses: Of each example, ``[B]``, in the order of the batch.
        outputs: Of the last stage, for the whole batch.
        gradients: Of the mean loss of the batch, in the order of :attr:`Pipeline.trainable_variables`; None for a
            weight that has none.
        times: When each pass began and ended, float64 ``[stages, micro-batches, 2, 2]``, in seconds: forwards then
            backwards, begin then end. Measured on the devices while they ran.
    """

    losses: tf.Tensor
    outputs: Nest
    gradients: Sequence[tf.Tensor]
    times: tf.Tensor

    def live_activations(self) -> tf.Tensor:
        """The most micro-batches whose activations were alive at the same time, from :attr:`times`: int32 ``[stages]``.

        They are alive from the beginning of a pass forwards to the end of the same micro-batch's pass backwards.
        """
        born, died = self.times[:, :, 0, 0], self.times[:, :, 1, 1]
        # At every birth, those born by then that had not died.
        alive = (born[:, None, :] <= born[:, :, None]) & (died[:, None, :] > born[:, :, None])
        return tf.reduce_max(tf.reduce_sum(tf.cast(alive, tf.int32), axis=2), axis=1)

    def idle_fraction(self) -> tf.Tensor:
        """The part of the step in which a stage had nothing to do, on average: float64 ``[]``, from 0 to 1."""
        busy = tf.reduce_sum(self.times[..., 1] - self.times[..., 0], axis=[1, 2])
        return 1.0 - tf.reduce_mean(busy) / (tf.reduce_max(self.times) - tf.reduce_min(self.times))


class Pipeline(tf.Module):
    """A model in stages, each on a device of its own.

    A task declares its stages by making one in ``build()``; its ``train_step`` calls :meth:`gradients` and hands the
    result to its optimizer.

    Args:
        stages: Functions that make the stages, built Keras models or layers; each is called with its device in scope.
            A stage takes the output of the one before, a tensor or a nest of tensors.
        options: Micro-batches, schedule and devices.

    Raises:
        ConfigurationError: There is no stage, or no such device.

    Example:
        >>> def build(self):
        ...     self.pipeline = Pipeline([make_encoder, make_decoder], PipelineOptions(micro_batches=8))
        ...     self.optimizer = keras.optimizers.Adam(1e-3)
        ...     self.optimizer.build(self.pipeline.trainable_variables)
        >>> def train_step(self, batch):
        ...     images, labels = batch
        ...     result = self.pipeline.gradients(images, labels, cross_entropy)
        ...     self.optimizer.apply(result.gradients, self.pipeline.trainable_variables)
        ...     return {"loss": result.losses}
    """

    def __init__(self, stages: Sequence[Callable[[], keras.Layer]], options: PipelineOptions | None = None) -> None:
        super().__init__(name="pipeline")
        self.options = options or PipelineOptions()
        if not stages:
            raise ConfigurationError("A pipeline needs at least one stage; received none.")
        self.devices = _share_out(len(stages), self.options.devices)
        self.stages = []
        for make, device in zip(stages, self.devices, strict=True):
            with tf.device(device):
                self.stages.append(make())

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        """The variables of all stages, in order."""
        return tuple(variable for stage in self.stages for variable in stage.variables)

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """The weights of all stages, in order."""
        return tuple(variable for stage in self.stages for variable in stage.trainable_variables)

    def __call__(self, inputs: Nest, *, training: bool = False) -> Nest:
        """A batch through all stages, undivided: for evaluation and serving."""
        for stage, device in zip(self.stages, self.devices, strict=True):
            with tf.device(device):
                inputs = stage(tf.nest.map_structure(tf.identity, inputs), training=training)
        return inputs

    def gradients(self, inputs: Nest, targets: Nest, loss: LossFunction) -> PipelineResult:
        """One batch forwards and backwards, by the schedule; micro-batches differ by one example at most.

        Losses that layers add (regularisation) are in the gradients, with each micro-batch's share of the batch as
        weight. Layers that look at a whole batch, such as batch normalisation, see micro-batches.

        Args:
            inputs: What the first stage takes, ``[B, ...]``.
            targets: What the loss takes, ``[B, ...]``.
            loss: A loss for each example.

        Returns:
            Losses, outputs, gradients, and when each pass ran.
        """
        return _Step(self, inputs, targets, loss).run()


class _Step:
    """One batch on its way through a pipeline."""

    def __init__(self, pipeline: Pipeline, inputs: Nest, targets: Nest, loss: LossFunction) -> None:
        self._pipeline, self._loss = pipeline, loss
        self._count = pipeline.options.micro_batches
        self._size = tf.shape(tf.nest.flatten(inputs)[0])[0]
        self._inputs, self._targets = self._cut(inputs), self._cut(targets)
        stages = len(pipeline.stages)
        # Of each stage: what its last pass made, which the next one waits for.
        self._previous: list[list[tf.Tensor]] = [[] for _ in range(stages)]
        self._totals: list[list[tf.Tensor]] = [[None] * len(stage.trainable_variables) for stage in pipeline.stages]
        self._tapes: dict[tuple[int, int], tuple[tf.GradientTape, Nest, list[tf.Tensor]]] = {}
        self._outputs: dict[tuple[int, int], Nest] = {}
        self._output_gradients: dict[tuple[int, int], Nest] = {}
        self._losses: dict[int, tf.Tensor] = {}
        self._times: dict[Pass, tuple[tf.Tensor, tf.Tensor]] = {}

    def run(self) -> PipelineResult:
        stages, count = len(self._pipeline.stages), self._count
        orders = [stage_order(self._pipeline.options.schedule, stage, stages, count) for stage in range(stages)]
        for item in issue_order(orders):
            (self._backward if item.backward else self._forward)(item)
        outputs = [self._outputs[stages - 1, micro] for micro in range(count)]
        moments = [
            [[self._times[Pass(stage, micro, back)] for back in (False, True)] for micro in range(count)]
            for stage in range(stages)
        ]
        with tf.device(self._pipeline.devices[-1]):
            return PipelineResult(
                losses=tf.concat([self._losses[micro] for micro in range(count)], axis=0),
                outputs=tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs),
                gradients=[total for totals in self._totals for total in totals],
                times=tf.convert_to_tensor(moments),
            )

    def _forward(self, item: Pass) -> None:
        stage, micro = item.stage, item.micro
        received = self._outputs[stage - 1, micro] if stage else self._inputs[micro]
        model = self._pipeline.stages[stage]
        is_last = stage == len(self._pipeline.stages) - 1
        with tf.device(self._pipeline.devices[stage]):
            began, here = self._begin(stage, received)
            with tf.GradientTape() as tape:
                tape.watch([value for value in tf.nest.flatten(here) if value.dtype.is_floating])
                output = model(here, training=True)
                goals = [value for value in tf.nest.flatten(output) if value.dtype.is_floating]
                if is_last:
                    losses = self._loss(output, tf.nest.map_structure(tf.identity, self._targets[micro]))
                    goals = [tf.reduce_sum(losses) / tf.cast(self._size, losses.dtype)]
                    self._losses[micro] = losses
                added = getattr(model, "losses", [])
                goals += [tf.cast(value, goals[0].dtype) * self._share(micro, goals[0].dtype) for value in added]
            self._tapes[stage, micro] = (tape, here, goals)
            self._outputs[stage, micro] = output
            self._end(item, began, [*tf.nest.flatten(output), *goals])

    def _backward(self, item: Pass) -> None:
        stage, micro = item.stage, item.micro
        tape, here, goals = self._tapes.pop((stage, micro))
        variables = [getattr(value, "value", value) for value in self._pipeline.stages[stage].trainable_variables]
        sources = [value for value in tf.nest.flatten(here) if value.dtype.is_floating] if stage else []
        with tf.device(self._pipeline.devices[stage]):
            received = self._output_gradients.pop((stage, micro), [])
            began, given = self._begin(stage, received)
            # The last stage and added losses start from themselves.
            given = [*given, *(tf.ones_like(goal) for goal in goals[len(given) :])]
            found = tape.gradient(goals, [*sources, *variables], output_gradients=given)
            totals = self._totals[stage]
            for index, gradient in enumerate(found[len(sources) :]):
                if gradient is not None:
                    gradient = tf.convert_to_tensor(gradient)
                    totals[index] = gradient if totals[index] is None else totals[index] + gradient
            onwards = [
                tf.zeros_like(source) if gradient is None else gradient
                for source, gradient in zip(sources, found[: len(sources)], strict=True)
            ]
            if stage:
                self._output_gradients[stage - 1, micro] = onwards
            self._end(item, began, [*onwards, *(total for total in totals if total is not None)])

    def _begin(self, stage: int, received: Nest) -> tuple[tf.Tensor, Nest]:
        """Waits for the stage's last pass and for what comes from the neighbour, and takes the time."""
        with tf.control_dependencies(self._previous[stage]):
            arrived = tf.nest.map_structure(tf.identity, received)
        with tf.control_dependencies([*self._previous[stage], *tf.nest.flatten(arrived)]):
            began = tf.timestamp()
        with tf.control_dependencies([began]):
            return began, tf.nest.map_structure(tf.identity, arrived)

    def _end(self, item: Pass, began: tf.Tensor, made: list[tf.Tensor]) -> None:
        with tf.control_dependencies(made):
            ended = tf.timestamp()
        self._times[item] = (began, ended)
        self._previous[item.stage] = [ended]

    def _cut(self, batch: Nest) -> list[tf.Tensor]:
        bounds = [self._size * part // self._count for part in range(self._count + 1)]
        return [
            tf.nest.map_structure(lambda value, low=low, high=high: value[low:high], batch)
            for low, high in zip(bounds, bounds[1:], strict=False)
        ]

    def _share(self, micro: int, dtype: tf.DType) -> tf.Tensor:
        rows = tf.shape(tf.nest.flatten(self._inputs[micro])[0])[0]
        return tf.cast(rows, dtype) / tf.cast(self._size, dtype)


def _share_out(stages: int, devices: Sequence[str]) -> tuple[str, ...]:
    if not devices:
        known = known_devices()
        of_kind = {kind: [name for name in known if name.startswith(f"{kind}:")] for kind in ("GPU", "CPU")}
        devices = of_kind["GPU"] or of_kind["CPU"]
    check_devices(devices)
    used = min(len(devices), stages)
    return tuple(devices[stage * used // stages] for stage in range(stages))
