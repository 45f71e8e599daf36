"""Verification: reload a format in its own runtime and hold it to the live model.

A converter that returns without an error proves nothing: measured with
TensorFlow 2.21, one returned a TFLite file without a single weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from modelyard.artifact import (
    ClassAccuracy,
    Signature,
    StochasticOutput,
    TensorSpec,
    VerifyReport,
    class_ids,
    format_key,
)
from modelyard.errors import VerificationError
from modelyard.export.formats import ROUNDING
from modelyard.export.publish import ExportEvent, ExportOptions, Progress, ignore_progress
from modelyard.export.rows import check_rows
from modelyard.export.runtimes import (
    Runtime,
    adapted,
    call_signature,
    computed_of,
    load_runtime,
    restored_state,
)
from modelyard.export.sources import FLOATS, Reference, batches, draw_size, graph_signature, join, split, tells_class
from modelyard.export.variants import accuracy_drop
from modelyard.export.verification._compare import Answers, Comparison, check_answer
from modelyard.export.verification._distribution import compare_draws, take_draws
from modelyard.export.verification._verification import Verification

#: Roundings of a source of half precision that are allowed on the way to an output.
_ROUNDINGS = 4

# Of more than these, those that change most are what a manifest has.
_MOST_CLASSES = 100


def verify(
    reference: Reference,
    directory: Path,
    *,
    format: str,
    options: ExportOptions,
    precision: str = "float32",
    runtime: str | None = None,
    progress: Progress = ignore_progress,
) -> Verification:
    """Compares one format with its source: names, dtypes, shapes and values.

    Every example runs at every batch size. Float outputs may differ by ``options.max_abs_error``, or by four roundings
    of a source of half precision that the format computes in float32; integers and strings, predicted classes among
    them, must be equal, and so must NaN and infinity. Of a variant of lower precision the differences are measured
    only; :func:`check_budget` judges them.

    Args:
        reference: The live model's answers.
        directory: The version directory that holds the format.
        format: ``saved_model``, ``onnx`` or ``tflite``.
        options: The tolerance.
        precision: Of the variant.
        runtime: To load it in; None for the first of ``runtimes_of``.
        progress: Called after every batch.

    Returns:
        The comparison, with figures for the manifest and for the report.

    Raises:
        VerificationError: The format cannot be loaded or run, or differs from
            its source; the message names format, signature, worst output and error.
        ExportError: The format is unknown.
    """
    lossy = precision != "float32"
    loaded = adapted(load_runtime(format, directory, precision=precision, runtime=runtime), reference.source, format)
    computed = computed_of(reference.source, format)
    # The source itself is that far from what the format computes more exactly.
    rounding = _ROUNDINGS * max((ROUNDING.get(dtype, 0.0) for dtype in computed), default=0.0)
    key = format_key(format, precision)
    place = key if runtime is None else f"{key} in {runtime}"
    _check_graphs(key, loaded, reference, extra=format in reference.source.files)
    signatures = reference.source.signatures
    comparison = Comparison(
        format=place,
        max_abs_error=max(options.max_abs_error, rounding),
        max_spread_error=max(options.max_spread_error, rounding),
        lossy=lossy,
    )
    answers = {
        name: _run_signature(place, loaded, reference, name, signature, comparison, progress)
        for name, signature in signatures.items()
    }
    for other in reference.others:
        for name in other.outputs:
            _run_other_length(place, loaded, other, name, comparison, progress)
    stochastic = _compare_draws(place, loaded, reference, options, lossy=lossy)
    before, after = _classes(reference, answers)
    labels = reference.data.labels
    result = Verification(
        format=format,
        precision=precision,
        served_by=loaded.name,
        runtime={loaded.package: version(loaded.package)},
        spread_error=comparison.spread_error,
        changed=comparison.changed,
        report=VerifyReport(
            examples=sum(
                len(next(iter(each.data.inputs[name].values())))
                for each in (reference, *reference.others)
                for name in each.outputs
            ),
            batch_sizes=tuple(sorted({size for each in answers.values() for size in each})),
            max_abs_error=comparison.worst_abs,
            max_rel_error=comparison.worst_rel,
            top1_agreement=_agreement(reference, answers),
            metric_before=None if labels is None else float((before == labels).mean()),
            metric_after=None if labels is None else float((after == labels).mean()),
            by_signature=comparison.by_signature,
            tolerance=rounding if rounding > options.max_abs_error and not lossy else None,
            by_class=_by_class(reference, before, after),
            stochastic=stochastic,
            rows=check_rows(loaded, signatures, reference.data.inputs, reference.rows, lossy=lossy),
        ),
        histogram=tuple(int(count) for count in comparison.histogram),
        worst=tuple(comparison.worst),
        classes_before=before,
        classes_after=after,
    )
    return (
        replace(result, report=replace(result.report, accuracy_drop=accuracy_drop(reference, result)))
        if lossy
        else result
    )


def _run_signature(
    format: str,
    runtime: Runtime,
    reference: Reference,
    name: str,
    signature: Signature,
    comparison: Comparison,
    progress: Progress,
) -> dict[int, Answers]:
    inputs = reference.data.inputs[name]
    count = len(next(iter(inputs.values())))
    results: dict[int, Answers] = {}
    total = count * len(reference.outputs[name])
    for turn, (size, expected) in enumerate(reference.outputs[name].items()):
        parts, rows = [], []
        wanted = split(expected, reference.shapes[name][size])
        with restored_state(runtime):
            for (start, batch), answers in zip(batches(signature, inputs, size), wanted, strict=True):
                answer = call_signature(runtime, name, signature, batch)
                check_answer(format, name, signature, answers, answer)
                parts.append(answer)
                rows.append(len(next(iter(batch.values()))))
                progress(
                    ExportEvent(stage=f"verify {format} {name}", done=turn * count + start + rows[-1], total=total)
                )
        results[size] = join(parts, rows)
        random = reference.draws.get(name, {})
        comparison.add(name, signature, size, expected, results[size], count=count, random=random)
    return results


def _run_other_length(
    format: str, runtime: Runtime, other: Reference, name: str, comparison: Comparison, progress: Progress
) -> None:
    kept = list(comparison.worst)
    try:
        _run_signature(format, runtime, other, name, other.source.signatures[name], comparison, progress)
    except VerificationError as exc:
        shapes = ", ".join(f"{key} {list(values.shape[1:])}" for key, values in other.data.inputs[name].items())
        raise VerificationError(f"{exc.message} It was asked for examples of another length: {shapes}.") from exc
    # Pages show the examples of the data by their number.
    comparison.worst[:] = kept


def _compare_draws(
    format: str, runtime: Runtime, reference: Reference, options: ExportOptions, *, lossy: bool
) -> tuple[StochasticOutput, ...]:
    found = []
    for name, ours in reference.draws.items():
        signature = reference.source.signatures[name]
        theirs = take_draws(
            partial(call_signature, runtime, name, signature),
            reference.data.inputs[name],
            tuple(ours),
            batch_size=draw_size(signature, reference.outputs[name]),
        )
        dtypes = {spec.name: spec.dtype for spec in signature.outputs}
        for output, values in ours.items():
            spread = float(np.ptp(values))
            slack = 0.0
            if dtypes[output] in FLOATS:
                allowed = min(options.max_abs_error * max(1.0, spread), options.max_spread_error * spread)
                # The spread of noise: most of it is within two standard deviations.
                noise = 4 * float(np.median(values.std(axis=1)))
                slack = options.budget.max_spread_error * noise if lossy else allowed
            try:
                found.append(compare_draws(name, output, values, theirs[output], slack=slack))
            except VerificationError as exc:
                raise VerificationError(f"Format {format}: {exc.message}") from exc
    return tuple(found)


def _check_graphs(format: str, runtime: Runtime, reference: Reference, *, extra: bool) -> None:
    """Compares what the file says it holds with what it must hold."""
    source = reference.source
    wanted = source.signatures if runtime.decodes else {name: graph_signature(source, name) for name in source.graphs}
    # A SavedModel that was taken over may have signatures that were not chosen: with its manifest servers skip them.
    if set(runtime.graphs) != set(wanted) and not (extra and set(runtime.graphs) > set(wanted)):
        raise VerificationError(
            f"Format {format} holds the graphs {sorted(runtime.graphs)}; expected {sorted(wanted)}."
        )
    for name, signature in wanted.items():
        found = runtime.graphs[name]
        for kind, ours, theirs in (
            ("input", signature.inputs, found.inputs),
            ("output", signature.outputs, found.outputs),
        ):
            _check_specs(f"Format {format}, graph {name!r}", kind, ours, theirs)


def _check_specs(place: str, kind: str, ours: tuple[TensorSpec, ...], theirs: tuple[TensorSpec, ...]) -> None:
    found = {spec.name: spec for spec in theirs}
    if set(found) != {spec.name for spec in ours}:
        raise VerificationError(f"{place}: {kind}s are {sorted(found)}; expected {sorted(spec.name for spec in ours)}.")
    for spec in ours:
        other = found[spec.name]
        if other.dtype != spec.dtype or not _fits(spec.shape, other.shape):
            raise VerificationError(
                f"{place}: {kind} {spec.name!r} is {other.dtype} {_text(other.shape)}; expected {spec.dtype} "
                f"{_text(spec.shape)}, where -1 is any size."
            )


def _fits(ours: tuple[int, ...] | None, theirs: tuple[int, ...] | None) -> bool:
    if ours is None or theirs is None:
        return True
    # A converter may forget a size, but must not fix one that is free: it would serve batch size 1 only.
    return len(ours) == len(theirs) and all(b in (a, -1) for a, b in zip(ours, theirs, strict=True))


def _text(shape: tuple[int, ...] | None) -> str:
    return "of unknown rank" if shape is None else str(list(shape))


def _agreement(reference: Reference, answers: Mapping[str, Mapping[int, Answers]]) -> float | None:
    key = reference.data.class_output
    signatures = reference.source.signatures
    shares = [
        float((class_ids(answer[key]) == class_ids(reference.outputs[name][size][key])).mean())
        for name, by_size in answers.items()
        for size, answer in by_size.items()
        if not signatures[name].takes_calls
        and any(spec.name == key and tells_class(spec) for spec in signatures[name].outputs)
        and key not in reference.draws.get(name, {})
    ]
    return min(shares) if shares else None


def _classes(
    reference: Reference, answers: Mapping[str, Mapping[int, Answers]]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    name, key = reference.measured, reference.data.class_output
    if name is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    labels = reference.data.labels
    found = {size: class_ids(answer[key]).astype(np.int64) for size, answer in answers[name].items()}
    size = min(found, key=lambda size: 0 if labels is None else (found[size] == labels).mean())
    return class_ids(reference.outputs[name][size][key]).astype(np.int64), found[size]


def _by_class(
    reference: Reference, before: npt.NDArray[np.int64], after: npt.NDArray[np.int64]
) -> tuple[ClassAccuracy, ...]:
    labels, names = reference.data.labels, reference.data.class_names
    if labels is None or reference.measured is None:
        return ()
    found = []
    for index in np.unique(labels).tolist():
        chosen = labels == index
        found.append(
            ClassAccuracy(
                name=names[index] if 0 <= index < len(names) else str(index),
                examples=int(chosen.sum()),
                before=float((before[chosen] == index).mean()),
                after=float((after[chosen] == index).mean()),
            )
        )
    if len(found) > _MOST_CLASSES:
        found = sorted(found, key=lambda each: -abs(each.after - each.before))[:_MOST_CLASSES]
    return tuple(found)
