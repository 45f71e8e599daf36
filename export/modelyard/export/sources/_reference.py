"""What the live model answers on the verification data: the truth that formats are held to."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import RowsCheck, VerificationData
from modelyard.errors import ConfigurationError, VerificationError
from modelyard.export.publish import ExportEvent, ExportOptions, Progress, ignore_progress
from modelyard.export.rows import walk_graphs
from modelyard.export.runtimes import Arrays, Runtime
from modelyard.export.sources._calls import (
    Call,
    Shapes,
    batches,
    call_sizes,
    draw_size,
    functions_of,
    join,
    runtime_call,
    source_call,
)
from modelyard.export.sources._checks import (
    check_constant,
    check_examples,
    check_finite,
    check_listed,
    check_repeatable,
    is_finite,
    listed_outputs,
)
from modelyard.export.sources._data import labelled, tells_class
from modelyard.export.sources._determinism import restored
from modelyard.export.sources._lengths import free_axes, other_length
from modelyard.export.sources._trace import TracedModel
from modelyard.export.verification import take_draws
from modelyard.wire import as_wire_array

_LOG = logging.getLogger("modelyard.export")

#: Examples of one call.
_SCORED = 64


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Answers of the live model.

    Attributes:
        source: The traced model.
        data: The examples.
        outputs: By signature, batch size and output name: answers for every example; the values of all calls in
            one row where the output does not have a row for each example.
        shapes: By signature and batch size: of every call, the shapes of its outputs.
        others: Of signatures with free axes: the same for examples of another length.
        draws: By signature and random output: many draws of some examples, see :func:`take_draws`.
        rows: By graph, what its operations say of whether the rows of a batch depend on each other; empty of a file
            that has no model behind it.
        measured: The signature on which the task's metric is computed; None
            where the data has no labels or no signature has the class output.
    """

    source: TracedModel
    data: VerificationData
    outputs: Mapping[str, Mapping[int, Mapping[str, npt.NDArray[Any]]]]
    shapes: Mapping[str, Mapping[int, Sequence[Shapes]]]
    draws: Mapping[str, Mapping[str, npt.NDArray[np.float64]]]
    measured: str | None
    others: tuple[Reference, ...] = ()
    rows: Mapping[str, RowsCheck] = field(default_factory=dict)


def compute_reference(
    source: TracedModel,
    data: VerificationData,
    *,
    options: ExportOptions,
    progress: Progress = ignore_progress,
) -> Reference:
    """Runs every signature of the live model on every example, at every batch size.

    Where the data has expected answers, as those of a file's own program, these take the place of the model's.

    Variables that a signature writes to have their values from before when this returns.

    Args:
        source: The traced model.
        data: Real examples for every signature.
        options: Batch sizes and the number of examples wanted.
        progress: Called after every batch.

    Raises:
        VerificationError: There are too few examples or they do not fit, or the model's own answers are not finite at
            all, or random and not listed in ``options.stochastic``, or listed and not random; or all outputs of a
            signature, or one float output that is computed from the inputs, are the same for every example.
    """
    source = _of_calls(source, data)
    with restored(source.serving.values()):
        found = _compute(source, data, dict(call_sizes(source, options)), source_call(source), options, progress)
    return replace(_held(found, data), rows=walk_graphs(source.graphs, source.signatures, found.outputs))


def _of_calls(source: TracedModel, data: VerificationData) -> TracedModel:
    """Finds signatures of whose inputs no first dimension is a batch: their examples have a dimension more.

    Such are the nodes and edges of one graph. Examples of one row each do not tell.
    """
    found = dict(source.signatures)
    for name, signature in source.signatures.items():
        examples = data.inputs.get(name, {})
        calls = [
            signature.decode is None
            and spec.shape is not None
            and spec.shape[:1] == (-1,)
            and np.ndim(next(iter(examples.get(spec.name, ())), 0)) == len(spec.shape)
            for spec in signature.inputs
        ]
        if all(calls) and any(len(each) != 1 for values in examples.values() for each in values):
            found[name] = replace(signature, unbatched=True)
            _LOG.info("Signature %s: each example is a whole call, as it has a dimension more than the inputs.", name)
    return replace(source, signatures=found)


def score(source: TracedModel, call: Call, name: str, inputs: Arrays) -> int:
    """How many different answers a signature has for examples; variables of the model stay as they are."""
    found: set[bytes] = set()
    with restored(functions_of(source, name)):
        for _, batch in batches(source.signatures[name], inputs, _SCORED):
            try:
                answers = call(name, batch)
            except VerificationError:
                return 0
            if not all(is_finite(spec, answers[spec.name]) for spec in source.signatures[name].outputs):
                return 0
            columns = [np.atleast_1d(values) for values in answers.values()]
            found |= {b"".join(_content(value) for value in row) for row in zip(*columns, strict=False)}
    return len(found)


def _content(value: npt.ArrayLike) -> bytes:
    array = np.asarray(value)
    return repr(array.tolist()).encode() if array.dtype == object else array.tobytes()


def compute_own_reference(
    source: TracedModel,
    runtime: Runtime,
    data: VerificationData,
    *,
    options: ExportOptions,
    progress: Progress = ignore_progress,
) -> Reference:
    """Runs every signature of a file that has no model behind it, one example at a time.

    What is computed alone must not change in a batch: that is what there is to
    verify. A signature whose batch size is fixed to 1 has that size only.
    """
    source = _of_calls(source, data)
    call = runtime_call(source, runtime)
    alone = _compute(source, data, dict.fromkeys(source.signatures, (1,)), call, options, progress)
    outputs, shapes = dict(alone.outputs), dict(alone.shapes)
    for name, signature in source.signatures.items():
        answers, count = alone.outputs[name][1], len(alone.shapes[name][1])
        if not signature.batched or not _has_rows(answers, alone.shapes[name][1]):
            continue
        outputs[name] = dict.fromkeys(options.batch_sizes, answers)
        shapes[name] = {
            size: [
                {key: (min(size, count - start), *values.shape[1:]) for key, values in answers.items()}
                for start in range(0, count, size)
            ]
            for size in options.batch_sizes
        }
    return _held(replace(alone, outputs=outputs, shapes=shapes), data)


def _held(found: Reference, data: VerificationData) -> Reference:
    """A reference with the answers in place that are expected of the file."""
    if not data.expected:
        return found
    outputs = {
        name: {size: _expected(name, data.expected.get(name, ()), 0, answers) for size, answers in by_size.items()}
        for name, by_size in found.outputs.items()
    }
    ordinals = dict.fromkeys(found.outputs, 0)
    others = []
    for each in found.others:
        ((name, by_size),) = each.outputs.items()
        ordinals[name] += 1
        given = data.expected.get(name, ()) if data.others.get(name) else ()
        held = {size: _expected(name, given, ordinals[name], answers) for size, answers in by_size.items()}
        others.append(replace(each, outputs={name: held}))
    return replace(found, outputs=outputs, others=tuple(others))


def _expected(name: str, given: Sequence[Arrays], ordinal: int, answers: Arrays) -> Arrays:
    """Answers with those in place that are expected of the file, as arrays of its dtypes and shapes."""
    if not given:
        return answers
    if ordinal >= len(given):
        raise ConfigurationError(f"Signature {name!r} has expected answers; then all examples must be of one shape.")
    found = dict(answers)
    for key, values in given[ordinal].items():
        if key not in answers:
            raise ConfigurationError(f"There are expected answers of {key!r}; the outputs are {sorted(answers)}.")
        own, array = answers[key], as_wire_array(values)
        # A column of one is the same to many libraries.
        same = [size for size in array.shape if size != 1] == [size for size in own.shape if size != 1]
        if not same or not np.can_cast(array.dtype, own.dtype, "same_kind"):
            raise ConfigurationError(
                f"The expected answers of output {key!r} of signature {name!r} are {array.dtype} {list(array.shape)}; "
                f"the file answers the examples with {own.dtype} {list(own.shape)}."
            )
        found[key] = array.astype(own.dtype).reshape(own.shape)
    return found


def _has_rows(answers: Arrays, shapes: Sequence[Shapes]) -> bool:
    """Whether every output of calls with one example had one row."""
    return all(shape[:1] == (1,) for each in shapes for shape in each.values()) and all(
        len(values) == len(shapes) for values in answers.values()
    )


def _compute(
    source: TracedModel,
    data: VerificationData,
    sizes: Mapping[str, Sequence[int]],
    call: Call,
    options: ExportOptions,
    progress: Progress,
) -> Reference:
    check_listed(source, options)
    data = check_examples(source, data, options=options)
    measured = _measured(source, data, options)
    counts = {name: len(next(iter(data.inputs[name].values()))) for name in source.signatures}
    for name in counts:
        _, batch = next(batches(source.signatures[name], data.inputs[name], max(sizes[name])))
        check_repeatable(source, name, call, batch, options)
    draws = {
        name: take_draws(
            partial(call, name), data.inputs[name], random, batch_size=draw_size(source.signatures[name], sizes[name])
        )
        for name in counts
        if (random := listed_outputs(source.signatures[name], options))
    }
    total, done = sum(count * len(sizes[name]) for name, count in counts.items()), 0
    outputs: dict[str, dict[int, dict[str, npt.NDArray[Any]]]] = {}
    shapes: dict[str, dict[int, list[Shapes]]] = {}
    for name, count in counts.items():
        outputs[name], shapes[name] = {}, {}
        for size in sizes[name]:
            parts, rows = [], []
            # A sequence of calls begins in the state that is published, and leaves it as it was.
            with restored(source.serving.values()):
                for start, batch in batches(source.signatures[name], data.inputs[name], size):
                    parts.append(call(name, batch))
                    rows.append(len(next(iter(batch.values()))))
                    progress(ExportEvent(stage="reference", done=done + start + rows[-1], total=total))
            done += count
            outputs[name][size] = join(parts, rows)
            shapes[name][size] = [{key: values.shape for key, values in part.items()} for part in parts]
        for answers in outputs[name].values():
            check_finite(source, name, answers)
        # Rows of one batch may share a number, such as a sum: what is computed apart shows whether all are the same.
        check_constant(source, name, outputs[name][min(sizes[name])], options)
    reference = Reference(
        source=source,
        data=data,
        outputs=outputs,
        shapes=shapes,
        draws=draws,
        measured=measured,
    )
    others = [
        _answered(reference, name, call, sizes[name], inputs)
        for name in counts
        if not source.signatures[name].stateful
        for inputs in data.others.get(name) or _other_length(reference, name, call)
    ]
    return replace(reference, others=tuple(others))


def _other_length(reference: Reference, name: str, call: Call) -> list[Arrays]:
    """Examples of another length for a signature with free axes."""

    def accepts(inputs: Arrays) -> bool:
        try:
            for _, batch in batches(signature, inputs, len(next(iter(inputs.values())))):
                call(name, batch)
        except VerificationError:
            return False
        return True

    signature = reference.source.signatures[name]
    if signature.takes_calls and not signature.unbatched:
        return []
    inputs = other_length(signature, reference.data.inputs[name], accepts)
    if inputs is None:
        if free := free_axes(signature):
            _LOG.warning(
                "Signature %s leaves axes of %s free, and the model took no examples of another length.",
                name,
                ", ".join(free),
            )
        return []
    return [inputs]


def _answered(reference: Reference, name: str, call: Call, sizes: Sequence[int], inputs: Arrays) -> Reference:
    """Answers to examples of another length, one at a time and all at once."""
    count = len(next(iter(inputs.values())))
    outputs: dict[int, dict[str, npt.NDArray[Any]]] = {}
    shapes: dict[int, list[Shapes]] = {}
    for size in sorted({1, min(count, max(sizes))}):
        parts = [call(name, batch) for _, batch in batches(reference.source.signatures[name], inputs, size)]
        outputs[size] = join(parts, [min(size, count - start) for start in range(0, count, size)])
        shapes[size] = [{key: values.shape for key, values in part.items()} for part in parts]
    data = replace(reference.data, inputs={name: inputs}, labels=None)
    return replace(reference, data=data, outputs={name: outputs}, shapes={name: shapes}, measured=None)


def _measured(source: TracedModel, data: VerificationData, options: ExportOptions) -> str | None:
    if data.labels is None or data.class_output in options.stochastic:
        return None
    for name in labelled(source.signatures, data):
        if any(spec.name == data.class_output and tells_class(spec) for spec in source.signatures[name].outputs):
            return name
    return None
