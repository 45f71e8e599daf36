"""Evaluation and prediction of a task by themselves, as a run does them and without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, EncodedImageFunction, SignatureFunction, TensorSpec, decode_image
from modelyard.errors import ConfigurationError
from modelyard.training.loop import DeviceLoop, Loop
from modelyard.training.run._input import known_length
from modelyard.training.run._options import TrainerOptions, whole_number
from modelyard.training.run._run_state import StepMetrics, find_metrics, variable_ids
from modelyard.training.user import InputRequest, Task, need_task


def make_step_loop(
    owner: Loop,
    task: Task,
    step: Callable[[Any], Mapping[str, tf.Tensor]],
    element_spec: Any,
    **options: Any,
) -> tuple[DeviceLoop, StepMetrics]:
    """The loop of a step, and the metrics that it updates."""
    before, label = len(variable_ids(task)), f"{step.__name__} of task {task.name!r}"
    try:
        loop = owner.compile(step, element_spec, label=label, **options)
    finally:
        # Also where tracing could not bear it.
        created = len(variable_ids(task)) - before
        if created:
            raise ConfigurationError(
                f"{label} created {created} variables; build() must create them all, "
                "so that a checkpoint can be restored before the first step. For an optimizer call "
                "optimizer.build(model.trainable_variables) there; for a metric whose variables come with its "
                "first values, such as keras.metrics.F1Score, call its update_state on zeros of the right shapes."
            )
    metrics = find_metrics(task, owner.strategy)
    return loop, StepMetrics(metrics, loop, label=label, strategy=owner.strategy)


class Evaluator:
    """Evaluates a task as often as it is told to."""

    def __init__(self, task: Task, options: TrainerOptions, owner: Loop) -> None:
        self._task, self._options, self._peers = task, options, owner.peers
        self._loop, self._metrics = make_step_loop(
            owner,
            task,
            task.eval_step,
            self._input()[0].element_spec,
            train=False,
            mode=options.mode.for_evaluation,
        )
        self.names = (*self._loop.names, *self._metrics.names)

    def run(self) -> dict[str, float]:
        """The numbers of the models as they are now."""
        dataset, steps = self._input()
        self._metrics.reset()
        means = self._loop.run(self._loop.iterate(dataset), steps, self._loop.empty()).totals.means()
        return {**means, **self._metrics.read()}

    def _input(self) -> tuple[tf.data.Dataset, int]:
        label = f"eval_dataset of task {self._task.name!r}"
        whole, options = self._peers.layout.fixed_shapes, self._options
        dataset = self._task.eval_dataset(InputRequest(batch_size=options.eval_batch_size, drop_remainder=whole))
        if options.eval_steps is not None:
            dataset = dataset.take(options.eval_steps)
        self._peers.check_shapes(dataset.element_spec, label)
        return dataset, known_length(dataset, label, whole_batches="eval_batch_size" if whole else None)


def evaluate(
    task: Task,
    *,
    batch_size: int = 500,
    steps: int | None = None,
    strategy: tf.distribute.Strategy | None = None,
) -> dict[str, float]:
    """Evaluates the models of a task, without a run.

    Args:
        task: Built, such as that of :func:`restore`.
        batch_size: Examples in each step.
        steps: The most batches, always the first ones; None for all.
        strategy: In whose scope the task was built.

    Returns:
        What ``eval_step`` returns, averaged, and its metrics, by their names in a run: ``test_loss``, ...

    Raises:
        ConfigurationError: The task is none, ``steps`` or ``batch_size`` is below 1, or the input has no known length.
        TrainingError: The task is not built.
    """
    need_task(task)
    options = TrainerOptions(eval_batch_size=batch_size, eval_steps=steps)
    owner = Loop(options, strategy=strategy)
    # To ask for what is exported says so where there is nothing yet.
    owner.track(**(task.models or task.exported))
    with owner.placed():
        found = Evaluator(task, options, owner).run()
    return {f"test_{name}": value for name, value in found.items()}


def predict(
    task: Task,
    inputs: Mapping[str, npt.NDArray[Any]] | None = None,
    *,
    signature: str = DEFAULT_SIGNATURE,
    batch_size: int = 500,
) -> dict[str, npt.NDArray[Any]]:
    """What the models of a task return, by one of its signatures, without a server.

    Args:
        task: Built, such as that of :func:`restore`.
        inputs: Arrays by input name, ``[N, ...]`` each, bytes for encoded images; None for the task's own examples.
        signature: Its name.
        batch_size: Examples in each call.

    Returns:
        Arrays by output name, ``[N, ...]``.

    Raises:
        ConfigurationError: There is no such signature, it starts from serialized examples, or the inputs are not its,
            or of no example; the task is none; or ``batch_size`` is below 1.
        ImageDecodeError: An image cannot be read.
        TrainingError: The task is not built.
    """
    need_task(task)
    batch_size = whole_number("batch_size (--batch-size)", batch_size, 1)
    functions = task.signatures()
    function = functions.get(signature)
    if inputs is None:
        inputs = task.verification_data(batch_size).inputs.get(signature, {})
    if not isinstance(inputs, Mapping):
        raise ConfigurationError(
            f"The inputs are a {type(inputs).__name__}; expected arrays by input name: {{name: ...}}."
        )
    sizes = {name: _examples(values) for name, values in inputs.items()}
    if 0 in sizes.values():
        raise ConfigurationError(f"The inputs have these numbers of examples: {sizes}; expected at least one in each.")
    if isinstance(function, EncodedImageFunction):
        compute, encoded = functions[function.compute], function
        if isinstance(compute, SignatureFunction) and set(inputs) == {function.input}:
            name = compute.inputs[0].name
            images = inputs[function.input]
            return _joined(compute, ({name: _pixels(encoded, part)} for part in _parts(images, batch_size)))
    if isinstance(function, SignatureFunction) and inputs and set(inputs) == {spec.name for spec in function.inputs}:
        if len(set(sizes.values())) == 1:
            parts = zip(*(_parts(values, batch_size) for values in inputs.values()), strict=True)
            return _joined(function, (dict(zip(inputs, part, strict=True)) for part in parts))
        raise ConfigurationError(f"The inputs have different numbers of examples: {sizes}.")
    usable = {
        name: [each.input] if isinstance(each, EncodedImageFunction) else [spec.name for spec in each.inputs]
        for name, each in functions.items()
        if isinstance(each, EncodedImageFunction | SignatureFunction)
    }
    raise ConfigurationError(
        f"Received the inputs {', '.join(inputs) or 'none'} for the signature {signature!r}; signatures that can be "
        f"called here, with their inputs: {usable}."
    )


def _examples(values: Any) -> int:
    """How many there are; 0 of what is no array of them."""
    single = not hasattr(values, "__len__") or getattr(values, "ndim", 1) == 0
    return 0 if single else len(values)


def _parts(values: npt.NDArray[Any], size: int) -> Iterator[Any]:
    return (values[begin : begin + size] for begin in range(0, len(values), size))


def _pixels(function: EncodedImageFunction, encoded: Sequence[bytes]) -> tf.Tensor:
    return tf.stack([function.preprocess(tf.constant(decode_image(each, function.channels))) for each in encoded])


def _joined(function: SignatureFunction, batches: Iterator[Mapping[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    compiled = tf.function(lambda **batch: dict(function.function(**batch)), reduce_retracing=True)
    found: list[dict[str, Any]] = []
    for batch in batches:
        given = {spec.name: _tensor(spec, batch[spec.name]) for spec in function.inputs}
        found.append({name: value.numpy() for name, value in compiled(**given).items()})
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}


def _tensor(spec: TensorSpec, value: Any) -> tf.Tensor:
    shape = None if spec.shape is None else [None if size < 0 else size for size in spec.shape]
    try:
        return tf.ensure_shape(tf.convert_to_tensor(value, spec.dtype), shape)
    except (TypeError, ValueError, tf.errors.OpError) as exc:
        try:
            sizes = str(list(np.shape(value)))
        except ValueError:
            sizes = "of rows that are not equally long"
        raise ConfigurationError(
            f"The input {spec.name!r} is {getattr(value, 'dtype', type(value).__name__)} {sizes}; "
            f"expected {spec.dtype} {tf.TensorShape(shape)}, where None is any number."
        ) from exc
