"""Requests without a row: answered from the signature, by no runtime.

onnxruntime's LSTM ends the whole process on a batch of no rows (1.31, 1.32), and
other runtimes refuse one or answer in shapes that the model would not have.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import InvalidInputError, ModelyardError
from modelyard.serving.backends import Arrays
from modelyard.serving.requests import format_shape, shape_fits
from modelyard.serving.servables._servable import Compute
from modelyard.wire import dtype_by_name

_MAX_VALUES = 1 << 16


def answer_zero_rows(compute: Compute, graphs: Mapping[str, Signature], signatures: Iterable[Signature]) -> Compute:
    """Answers batches without a row, and passes all others on.

    The first dimension of every input and output of the graph must be of any size; other graphs get such batches
    themselves. The outputs have no rows either. Inner sizes that the signature leaves open are those of the answer to
    one row of zeros, or 0 where the model refuses that or it has more than 65,536 values.
    """
    outputs_of = {name: graph.outputs for name, graph in graphs.items()}
    signatures = list(signatures)
    outputs_of |= {signature.compute: signature.outputs for signature in signatures}
    # A row of our own making would change the state.
    stateful = {signature.compute for signature in signatures if signature.stateful}
    batched = {
        name
        for name, graph in graphs.items()
        if graph.inputs and name not in stateful and all(_is_batch(spec) for spec in (*graph.inputs, *outputs_of[name]))
    }

    def run(graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        for array in inputs.values():
            # The usual request leaves at its first input.
            if array.size or array.shape[0]:
                return compute(graph, inputs, outputs)
        if graph not in batched:
            return compute(graph, inputs, outputs)
        for spec in graphs[graph].inputs:
            if not shape_fits(inputs[spec.name].shape, spec.shape):
                raise InvalidInputError(
                    f"Input {spec.name!r} has shape {format_shape(inputs[spec.name].shape)}; expected {spec.dtype} "
                    f"{format_shape(spec.shape)} (-1 is any size)."
                )
        wanted = {spec.name: spec for spec in outputs_of[graph] if spec.name in outputs}
        # Where inputs have open sizes, an open first size of an output may be one of theirs.
        if all(_is_known(spec) for spec in (*wanted.values(), *graphs[graph].inputs)):
            return {name: _no_rows(wanted[name]) for name in outputs}
        answer: Mapping[str, npt.NDArray[Any]] = {}
        sizes = [math.prod(array.shape[1:]) for array in inputs.values()]
        # The request says how large such a row is, and brings none of it.
        if min(sizes) > 0 and sum(sizes) <= _MAX_VALUES:
            one = {name: np.full((1, *array.shape[1:]), _zero(array), array.dtype) for name, array in inputs.items()}
            # What the model has against a row of our own making is nothing to do with the request.
            with contextlib.suppress(ModelyardError):
                answer = compute(graph, one, outputs)
        if any(values.shape[:1] != (1,) for values in answer.values()):
            # Its outputs have no row for each row of the inputs, whatever their shapes say.
            return compute(graph, inputs, outputs)
        return {name: answer[name][:0] if name in answer else _no_rows(wanted[name]) for name in outputs}

    return run


def _zero(array: npt.NDArray[Any]) -> bytes | int:
    return b"" if array.dtype == object else 0


def _is_batch(spec: TensorSpec) -> bool:
    return spec.shape is not None and spec.shape[:1] == (-1,)


def _is_known(spec: TensorSpec) -> bool:
    return spec.shape is not None and -1 not in spec.shape[1:]


def _no_rows(spec: TensorSpec) -> npt.NDArray[Any]:
    inner = (spec.shape or ())[1:]
    return np.zeros((0, *(max(0, size) for size in inner)), dtype_by_name(spec.dtype).numpy)
