"""Representative inputs of the graphs: what full-integer quantization takes its ranges from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from modelyard.artifact import ExampleDecode, Signature, VerificationData, decode_examples
from modelyard.errors import InvalidInputError, VerificationError
from modelyard.export.formats import ROUNDING
from modelyard.export.runtimes import Arrays
from modelyard.export.sources import fit_examples
from modelyard.wire import dtype_by_numpy


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Examples for every graph that computes, by graph and input.

    A graph that preprocesses one encoded image has none: it is resizing and scaling, which stays in floats. Of
    ``calls``, graphs without a batch, an example is one call.
    """

    inputs: Mapping[str, Arrays]
    calls: frozenset[str] = frozenset()

    def examples(self, graph: str, size: int = 1) -> Iterator[Arrays]:
        """The examples of one graph, in batches."""
        inputs = self.inputs.get(graph, {})
        count = len(next(iter(inputs.values()), ()))
        if graph in self.calls:
            for index in range(count):
                yield {name: np.asarray(values[index]) for name, values in inputs.items()}
            return
        for start in range(0, count, size):
            yield {name: values[start : start + size] for name, values in inputs.items()}


def make_calibration(signatures: Mapping[str, Signature], data: VerificationData, *, limit: int) -> Calibration:
    """Takes representative examples, spread evenly over the data."""
    data = fit_examples(signatures, replace(data, labels=None))
    inputs: dict[str, Arrays] = {}
    for name, signature in signatures.items():
        if signature.compute != name:
            continue
        examples = data.inputs.get(name)
        if examples is None:
            raise VerificationError(
                f"There are no examples of signature {name!r} to calibrate int8 on; there are some of "
                f"{', '.join(data.inputs) or 'none'}."
            )
        count = len(next(iter(examples.values())))
        rows = np.unique(np.linspace(0, count - 1, min(count, limit)).round().astype(np.int64))
        chosen = {key: values[rows] for key, values in examples.items()}
        if isinstance(signature.decode, ExampleDecode):
            try:
                chosen = decode_examples(chosen[signature.decode.input].tolist(), signature.decode)
            except InvalidInputError as exc:
                raise VerificationError(f"Signature {name!r} cannot be calibrated: {exc.message}") from exc
        # Files have float32 in the place of the halves.
        inputs[name] = {
            key: values.astype(np.float32) if dtype_by_numpy(values.dtype).name in ROUNDING else values
            for key, values in chosen.items()
        }
    calls = frozenset(name for name in inputs if signatures[name].takes_calls)
    return Calibration(inputs=inputs, calls=calls)
