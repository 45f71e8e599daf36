"""Calls of a source in batches, and what they answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import Signature
from modelyard.errors import VerificationError
from modelyard.export.formats import gist
from modelyard.export.publish import ExportOptions
from modelyard.export.runtimes import Arrays, Runtime, as_array, call_signature, to_tensor
from modelyard.export.sources._trace import TracedModel

if TYPE_CHECKING:
    from tensorflow.python.types.core import PolymorphicFunction


Shapes = Mapping[str, tuple[int, ...]]


Call = Callable[[str, Arrays], dict[str, npt.NDArray[Any]]]


def source_call(source: TracedModel) -> Call:
    """Calls signatures of the live model."""
    return partial(_call, source)


def runtime_call(source: TracedModel, runtime: Runtime) -> Call:
    """Calls signatures of a file that has no model behind it; as :func:`source_call`."""
    return lambda name, batch: call_signature(runtime, name, source.signatures[name], batch)


def functions_of(source: TracedModel, name: str) -> list[PolymorphicFunction]:
    # A file has none.
    return [source.serving[name]] if name in source.serving else []


def join(parts: Sequence[Arrays], rows: Sequence[int]) -> dict[str, npt.NDArray[Any]]:
    """Concatenates answers of several calls: rows, or all values where an output has no row for each example."""
    joined = {}
    for key in parts[0]:
        values = [part[key] for part in parts]
        has_rows = all(each.shape[:1] == (count,) for each, count in zip(values, rows, strict=True))
        if not has_rows or len({each.shape[1:] for each in values}) > 1:
            values = [each.ravel() for each in values]
        joined[key] = np.concatenate(values)
    return joined


def split(joined: Arrays, shapes: Sequence[Shapes]) -> Iterator[Arrays]:
    """Answers of each call, as :func:`join` was given them."""
    begin = dict.fromkeys(joined, 0)
    for each in shapes:
        part = {}
        for key, shape in each.items():
            values = joined[key]
            end = begin[key] + (shape[0] if values.ndim > 1 else math.prod(shape))
            part[key] = values[begin[key] : end].reshape(shape)
            begin[key] = end
        yield part


def call_sizes(source: TracedModel, options: ExportOptions) -> Iterator[tuple[str, Sequence[int]]]:
    """Batch sizes to verify at, by signature: 1 where no input has a batch."""
    for name, signature in source.signatures.items():
        any_open = any(spec.shape is None or spec.shape[:1] == (-1,) for spec in signature.inputs)
        is_cut = signature.takes_calls and any_open and not signature.unbatched
        yield name, options.batch_sizes if signature.batched or is_cut else (1,)


def batches(signature: Signature, inputs: Arrays, size: int) -> Iterator[tuple[int, Arrays]]:
    """Splits examples into batches, the last one smaller where it must be.

    Where the signature takes no batch, an example is one call: then a batch is one example. Beside inputs of a fixed
    size, others with any number of rows have at most ``size`` of them.
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


def _call(source: TracedModel, name: str, batch: Arrays) -> dict[str, npt.NDArray[Any]]:
    function = source.serving[name]
    try:
        values = [batch[spec.name] for spec in source.signatures[name].inputs]
        if source.signatures[name].takes_calls:
            values = [as_array(each[0]) for each in values]
        outputs = function(*[to_tensor(each) for each in values])
    # TensorFlow's errors have no base class that is public and complete: this is the boundary that maps them.
    except Exception as exc:
        raise VerificationError(
            f"Signature {name!r} of the source fails on its own examples: {gist(exc)}. Give examples that it takes "
            "(--data FILE.npz); random ones do not fit inputs that depend on each other, as those of ragged tensors do."
        ) from exc
    answers = {key: as_array(value.numpy()) for key, value in outputs.items()}
    return (
        {key: value[np.newaxis] for key, value in answers.items()} if source.signatures[name].takes_calls else answers
    )


def draw_size(signature: Signature, sizes: Iterable[int]) -> int:
    """Rows of a call that draws."""
    return max(sizes) if signature.batched else 1
