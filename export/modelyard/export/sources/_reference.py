"""What the live model answers on the verification data: the truth that formats are held to."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import RowsCheck, Signature, TensorSpec, VerificationData
from modelyard.errors import ConfigurationError, VerificationError
from modelyard.export.formats import gist
from modelyard.export.publish import ExportEvent, ExportOptions, Progress, ignore_progress
from modelyard.export.rows import walk_graphs
from modelyard.export.runtimes import Arrays, Runtime, as_array, call_signature, to_tensor
from modelyard.export.sources._data import FLOATS, fit_examples, labelled, tells_class
from modelyard.export.sources._dependence import computed_outputs
from modelyard.export.sources._determinism import differing, draws, restored
from modelyard.export.sources._lengths import free_axes, other_length
from modelyard.export.sources._trace import TracedModel
from modelyard.export.verification import take_draws

_LOG = logging.getLogger("modelyard.export")

#: Examples of one call.
_SCORED = 64

Shapes = Mapping[str, tuple[int, ...]]
Call = Callable[[str, Arrays], dict[str, npt.NDArray[Any]]]


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

    Variables that a signature writes to have their values from before when this returns.

    Args:
        source: The traced model.
        data: Real examples for every signature.
        options: Batch sizes and the number of examples wanted.
        progress: Called after every batch.

    Raises:
        VerificationError: There are too few examples or they do not fit, or the
            model's own answers are not finite at all, or random and not listed in ``options.stochastic``, or
            listed and not random; or all outputs of a signature, or one
            float output that is computed from the inputs, are the same for every example.
    """
    source = _of_calls(source, data)
    with restored(source.serving.values()):
        found = _compute(source, data, dict(call_sizes(source, options)), source_call(source), options, progress)
    return replace(found, rows=walk_graphs(source.graphs, source.signatures))


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


def source_call(source: TracedModel) -> Call:
    """Calls signatures of the live model.

    Args:
        source: The traced model.

    Returns:
        Takes a signature's name and its inputs, and raises VerificationError where the model fails.
    """
    return partial(_call, source)


def runtime_call(source: TracedModel, runtime: Runtime) -> Call:
    """Calls signatures of a file that has no model behind it; as :func:`source_call`.

    Args:
        source: Describes the file.
        runtime: The file, loaded.
    """
    return lambda name, batch: call_signature(runtime, name, source.signatures[name], batch)


def score(source: TracedModel, call: Call, name: str, inputs: Arrays) -> int:
    """How many different answers a signature has for examples; variables of the model stay as they are.

    Args:
        source: The traced model.
        call: Calls it.
        name: Of the signature.
        inputs: By name.

    Returns:
        0 where it fails on them, or answers with NaN or infinity.
    """
    found: set[bytes] = set()
    with restored(_functions(source, name)):
        for _, batch in batches(source.signatures[name], inputs, _SCORED):
            try:
                answers = call(name, batch)
            except VerificationError:
                return 0
            if not all(_is_finite(spec, answers[spec.name]) for spec in source.signatures[name].outputs):
                return 0
            columns = [np.atleast_1d(values) for values in answers.values()]
            found |= {b"".join(_content(value) for value in row) for row in zip(*columns, strict=False)}
    return len(found)


def _content(value: Any) -> bytes:
    array = np.asarray(value)
    return repr(array.tolist()).encode() if array.dtype == object else array.tobytes()


def _is_finite(spec: TensorSpec, values: npt.NDArray[Any]) -> bool:
    return spec.dtype not in FLOATS or bool(np.isfinite(values.astype(np.float64)).all())


def _has_finite(spec: TensorSpec, values: npt.NDArray[Any]) -> bool:
    # Masks of single values are part of what some models say, and compared as they are.
    return spec.dtype not in FLOATS or not values.size or bool(np.isfinite(values.astype(np.float64)).any())


def _functions(source: TracedModel, name: str) -> list[Any]:
    # A file has none.
    return [source.serving[name]] if name in source.serving else []


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

    Args:
        source: Describes the file; it has no functions.
        runtime: The file, loaded.
        data: Real examples for every signature.
        options: Batch sizes and the number of examples wanted.
        progress: Called after every batch.

    Raises:
        VerificationError: As :func:`compute_reference`; or the runtime fails.
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
    return replace(alone, outputs=outputs, shapes=shapes)


def _has_rows(answers: Arrays, shapes: Sequence[Shapes]) -> bool:
    """Whether every output of calls with one example had one row."""
    return all(shape[:1] == (1,) for each in shapes for shape in each.values()) and all(
        len(values) == len(shapes) for values in answers.values()
    )


def join(parts: Sequence[Arrays], rows: Sequence[int]) -> dict[str, npt.NDArray[Any]]:
    """Answers of several calls in one: their rows, or all of their values where an output has no row for each example.

    Args:
        parts: Answers by output name, for each call.
        rows: Examples of each call.
    """
    joined = {}
    for key in parts[0]:
        values = [part[key] for part in parts]
        has_rows = all(each.shape[:1] == (count,) for each, count in zip(values, rows, strict=True))
        if not has_rows or len({each.shape[1:] for each in values}) > 1:
            values = [each.ravel() for each in values]
        joined[key] = np.concatenate(values)
    return joined


def split(joined: Arrays, shapes: Sequence[Shapes]) -> Iterator[Arrays]:
    """Answers of each call, as :func:`join` was given them.

    Args:
        joined: By output name.
        shapes: Of each call.
    """
    begin = dict.fromkeys(joined, 0)
    for each in shapes:
        part = {}
        for key, shape in each.items():
            values = joined[key]
            end = begin[key] + (shape[0] if values.ndim > 1 else math.prod(shape))
            part[key] = values[begin[key] : end].reshape(shape)
            begin[key] = end
        yield part


def _compute(
    source: TracedModel,
    data: VerificationData,
    sizes: Mapping[str, Sequence[int]],
    call: Call,
    options: ExportOptions,
    progress: Progress,
) -> Reference:
    _check_listed(source, options)
    data = check_examples(source, data, options=options)
    measured = _measured(source, data, options)
    counts = {name: len(next(iter(data.inputs[name].values()))) for name in source.signatures}
    for name in counts:
        _, batch = next(batches(source.signatures[name], data.inputs[name], max(sizes[name])))
        _check_repeatable(source, name, call, batch, options)
    draws = {
        name: take_draws(
            partial(call, name), data.inputs[name], random, batch_size=draw_size(source.signatures[name], sizes[name])
        )
        for name in counts
        if (random := _listed(source.signatures[name], options))
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
            _check_finite(source, name, answers)
        # Rows of one batch may share a number, such as a sum: what is computed apart shows whether all are the same.
        _check_constant(source, name, outputs[name][min(sizes[name])], options)
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


def check_examples(source: TracedModel, data: VerificationData, *, options: ExportOptions) -> VerificationData:
    """Checks that examples can verify a model, before anything is computed.

    Args:
        source: The traced model.
        data: Real examples for every signature.
        options: The number of examples wanted.

    Returns:
        The examples as the signatures want them.

    Raises:
        ConfigurationError: Something among them is no array.
        VerificationError: There are too few, or they do not fit.
    """
    data = fit_examples(source.signatures, data)
    for name in source.signatures:
        _check_examples(source, data, name, options)
    return data


def call_sizes(source: TracedModel, options: ExportOptions) -> Iterator[tuple[str, Sequence[int]]]:
    """Batch sizes to verify at, by signature: 1 where no input has a batch.

    Args:
        source: The traced model.
        options: The batch sizes wanted.
    """
    for name, signature in source.signatures.items():
        any_open = any(spec.shape is None or spec.shape[:1] == (-1,) for spec in signature.inputs)
        is_cut = signature.takes_calls and any_open and not signature.unbatched
        yield name, options.batch_sizes if signature.batched or is_cut else (1,)


def batches(signature: Signature, inputs: Arrays, size: int) -> Iterator[tuple[int, Arrays]]:
    """Splits examples into batches, the last one smaller where it must be.

    Where the signature takes no batch, an example is one call: then a batch is one
    example. Beside inputs of a fixed size, others with any number of rows have at
    most ``size`` of them.

    Args:
        signature: Takes them.
        inputs: By name, N examples each.
        size: Rows of a batch.

    Yields:
        The index of the first example, and the batch.
    """
    count = len(next(iter(inputs.values())))
    if not signature.takes_calls:
        for start in range(0, count, size):
            yield start, {name: values[start : start + size] for name, values in inputs.items()}
        return
    # Where none is fixed, rows belong together as only the data can know.
    cut = {spec.name for spec in signature.inputs if spec.shape and spec.shape[0] == -1 and not signature.unbatched}
    rows = {name: values[:, :size] if name in cut else values for name, values in inputs.items()}
    for start in range(count):
        yield start, {name: values[start : start + 1] for name, values in rows.items()}


def is_constant(values: npt.NDArray[Any]) -> bool:
    """Whether every example has the same output.

    Args:
        values: ``[N, ...]``.
    """
    return bool((values == values[:1]).all())


def _call(source: TracedModel, name: str, batch: Arrays) -> dict[str, npt.NDArray[Any]]:
    function = source.serving[name]
    try:
        values = [batch[spec.name] for spec in source.signatures[name].inputs]
        if source.signatures[name].takes_calls:
            values = [as_array(each[0]) for each in values]
        outputs = function(*[to_tensor(each) for each in values])
    # TensorFlow's errors have no base class that is public and complete: this is the boundary that maps them.
    except Exception as exc:
        raise VerificationError(f"Signature {name!r} of the source fails on its own examples: {gist(exc)}.") from exc
    answers = {key: as_array(value.numpy()) for key, value in outputs.items()}
    return (
        {key: value[np.newaxis] for key, value in answers.items()} if source.signatures[name].takes_calls else answers
    )


def _check_repeatable(source: TracedModel, name: str, call: Call, batch: Arrays, options: ExportOptions) -> None:
    functions = _functions(source, name)
    with restored(functions):
        first = call(name, batch)
        # A model that counts its calls may answer otherwise the second time, one that draws from a generator may not.
        still = functions and not any(draws(each) for each in functions)
        names = [] if still else differing(first, call(name, batch), options.max_abs_error)
    listed = _listed(source.signatures[name], options)
    if still := sorted(set(listed) - set(names)):
        _refuse_still(name, still)
    if names := sorted(set(names) - set(listed)):
        raise VerificationError(
            f"{'Output' if len(names) == 1 else 'Outputs'} {', '.join(map(repr, names))} of signature {name!r} of the "
            "source itself differ when the same examples are given again: the model draws random numbers. No format "
            "can be verified against that by value. Compare it in distribution (--stochastic "
            f"{','.join(names)}, in Python ExportOptions.stochastic), return the mean, take the noise as an input, or "
            "choose other signatures."
        )


def _listed(signature: Signature, options: ExportOptions) -> tuple[str, ...]:
    return tuple(spec.name for spec in signature.outputs if spec.name in options.stochastic)


def _check_listed(source: TracedModel, options: ExportOptions) -> None:
    known = sorted({spec.name for each in source.signatures.values() for spec in each.outputs})
    if unknown := sorted(set(options.stochastic) - set(known)):
        raise ConfigurationError(
            f"--stochastic (ExportOptions.stochastic) lists {', '.join(unknown)}; expected some of the outputs "
            f"{', '.join(known)}."
        )


def _refuse_still(name: str, still: Sequence[str]) -> None:
    raise VerificationError(
        f"{', '.join(map(repr, still))} of signature {name!r} {'is' if len(still) == 1 else 'are'} listed in "
        "--stochastic (ExportOptions.stochastic), and the source gives the same when asked again. Leave it out of "
        "the list, to be compared by value."
    )


def draw_size(signature: Signature, sizes: Iterable[int]) -> int:
    """Rows of a call that draws.

    Args:
        signature: Is asked.
        sizes: Of batches, that are compared anyway.
    """
    return max(sizes) if signature.batched else 1


def _check_examples(source: TracedModel, data: VerificationData, name: str, options: ExportOptions) -> None:
    signature = source.signatures[name]
    examples = data.inputs.get(name)
    if examples is None:
        raise VerificationError(
            f"Signature {name!r} has no verification examples; there are some for {', '.join(data.inputs) or 'none'}. "
            "An export without them cannot be trusted: add real inputs for it to VerificationData."
        )
    wanted = {spec.name: spec for spec in signature.inputs}
    if set(examples) != set(wanted):
        raise VerificationError(
            f"The examples of signature {name!r} have inputs {sorted(examples)}; expected {sorted(wanted)}."
        )
    _check_shapes(name, signature, examples)
    counts = {len(values) for values in examples.values()}
    if len(counts) != 1:
        raise VerificationError(
            f"The inputs of signature {name!r} have {sorted(counts)} examples; expected as many for each. Where their "
            "first dimension is no batch, each example is a whole call: give lists of arrays, one for each call."
        )
    total = min(counts) + sum(len(next(iter(each.values()))) for each in data.others.get(name, ()))
    if total < options.min_examples:
        raise VerificationError(
            f"There are {total} examples to verify signature {name!r} with; expected at least "
            f"{options.min_examples}. Give more, or ask for fewer: --min-examples {total} "
            "(ExportOptions.min_examples)."
        )
    for key, values in examples.items():
        kind = "string" if values.dtype.kind in "OSU" else values.dtype.name
        if kind != wanted[key].dtype:
            raise VerificationError(
                f"The examples of input {key!r} of signature {name!r} are {kind}; expected {wanted[key].dtype}."
            )


def _check_shapes(name: str, signature: Signature, examples: Arrays) -> None:
    """Of a signature that takes no batch, each input has a first dimension more than a call."""
    for spec in signature.inputs:
        shape = examples[spec.name].shape
        wanted = None if spec.shape is None else ("N", *spec.shape[0 if signature.takes_calls else 1 :])
        if wanted is None or (
            len(shape) == len(wanted) and all(b in (a, -1, "N") for a, b in zip(shape, wanted, strict=True))
        ):
            continue
        calls = " The signature takes no batch, so that each of N examples is a call of its own."
        raise VerificationError(
            f"The examples of input {spec.name!r} of signature {name!r} have shape {list(shape)}; expected "
            f"{list(wanted)}, where -1 is any size.{calls if signature.takes_calls else ''}"
        )


def _check_finite(source: TracedModel, name: str, answers: Arrays) -> None:
    for spec in source.signatures[name].outputs:
        if not _has_finite(spec, answers[spec.name]):
            raise VerificationError(
                f"Output {spec.name!r} of signature {name!r} of the source itself is NaN or infinite on all examples. "
                "No export of it can be verified: look at the training run."
            )


def _check_constant(source: TracedModel, name: str, answers: Arrays, options: ExportOptions) -> None:
    # A single call may have a single number to show.
    constant = {key for key, values in answers.items() if len(values) > 1 and is_constant(values)}
    constant -= set(options.constant_outputs)
    if constant == set(answers):
        raise VerificationError(
            f"Every output of signature {name!r} of the source itself is the same for all examples. A model whose "
            "weights were lost does that, so it cannot be verified: train it, or give examples that differ."
        )
    # Integers and strings may well be the same for all: a version, a list of class names, the class itself.
    suspects = {spec.name for spec in source.signatures[name].outputs if spec.dtype in FLOATS and spec.name in constant}
    if suspects and name in source.serving:
        suspects &= computed_outputs(source.serving[name])
    for key in sorted(suspects):
        raise VerificationError(
            f"Output {key!r} of signature {name!r} of the source itself is the same for all examples, though it is "
            "computed from the inputs. Lost weights do that, and so does a layer that is dead. Train it, give examples "
            f"that differ, or say that it may be so: --allow-constant {key} (ExportOptions.constant_outputs)."
        )


def _measured(source: TracedModel, data: VerificationData, options: ExportOptions) -> str | None:
    if data.labels is None or data.class_output in options.stochastic:
        return None
    for name in labelled(source.signatures, data):
        if any(spec.name == data.class_output and tells_class(spec) for spec in source.signatures[name].outputs):
            return name
    return None
