"""A servable: one loaded version of one model, ready to compute."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import ExampleDecode, ImageDecode, RowsCheck, Signature, decode_examples, decode_image
from modelyard.errors import (
    ImageDecodeError,
    InternalError,
    InvalidInputError,
    PredictionError,
    SignatureNotFoundError,
)
from modelyard.serving.backends import Backend
from modelyard.serving.requests import Arrays, complete_inputs
from modelyard.serving.servables._memory import release_memory
from modelyard.wire import dtype_by_name, tensorflow_pb2

if TYPE_CHECKING:
    from modelyard.serving.config import BatchParameters
    from modelyard.serving.servables._plans import Plan

Compute = Callable[[str, Arrays, Sequence[str]], dict[str, npt.NDArray[Any]]]


def one_at_a_time(compute: Compute, signatures: Iterable[Signature]) -> Compute:
    """Computes calls of graphs with state one after the other, whatever thread they are on."""
    stateful = {signature.compute for signature in signatures if signature.stateful}
    if not stateful:
        return compute
    lock = threading.Lock()

    def run(graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        if graph not in stateful:
            return compute(graph, inputs, outputs)
        with lock:
            return compute(graph, inputs, outputs)

    return run


@dataclass(frozen=True, kw_only=True)
class Servable:
    """One loaded version.

    Attributes:
        path: The version directory.
        signatures: What requests may call.
        definitions: The SignatureDefs that metadata requests are answered with.
        defaults: Values for inputs that may be left out, by signature.
        compute: Computes a batch of any number of rows, also of none, from graph, inputs and output names.
        check_shapes: Whether shapes must fit the signatures: where the runtime
            insists on it, or a manifest vouches for them.
        rows: By signature, what the manifest says of its rows in this runtime; None of a foreign model.
        gainless: Signatures whose large batches the manifest has not measured to be faster, row by row.
        row_wise: Graphs whose rows do not depend on each other, and that gain by computing several of them, so that
            requests to them share batches.
        batching: TensorFlow Serving's parameters, where the server was given some: then all graphs are batched that
            take batches and keep no state.
        plans: What the data plane worked out for each signature.
        closed: Called when it is closed.
    """

    name: str
    version: int
    path: Path
    backend: Backend
    signatures: Mapping[str, Signature]
    definitions: Mapping[str, tensorflow_pb2.SignatureDef]
    check_shapes: bool
    defaults: Mapping[str, Arrays]
    compute: Compute
    rows: Mapping[str, RowsCheck] | None = None
    gainless: frozenset[str] = frozenset()
    row_wise: frozenset[str] = frozenset()
    batching: BatchParameters | None = None
    plans: dict[tuple[str, tuple[str, ...]], Plan] = field(default_factory=dict, compare=False, repr=False)
    closed: Callable[[], None] | None = field(default=None, compare=False, repr=False)

    @property
    def max_request_rows(self) -> int | None:
        """Rows that it takes of a request; None for any number."""
        return None if self.batching is None else self.batching.max_batch_size

    def signature(self, name: str) -> Signature:
        """Returns the signature of a name.

        Raises:
            SignatureNotFoundError: There is none of that name.
        """
        try:
            return self.signatures[name]
        except KeyError:
            raise SignatureNotFoundError(
                f'Serving signature key "{name}" not found. Model {self.name!r} version {self.version} has: '
                f"{', '.join(sorted(self.signatures))}."
            ) from None

    def run(self, signature: Signature, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Checks a batch, decodes it where the signature says so, and computes it.

        Args:
            signature: One of :attr:`signatures`.
            inputs: Arrays by input name.
            outputs: The outputs to compute.

        Raises:
            ImageDecodeError: An encoded image is not one.
            InvalidInputError: Names, dtypes or shapes do not fit; or a message is
                no Example of the features that the signature describes.
            PredictionError: The runtime failed.
        """
        inputs = self.complete(signature, inputs)
        return self.compute(signature.compute, self.decoded(signature, inputs), outputs)

    def complete(self, signature: Signature, inputs: Arrays) -> Arrays:
        """Checks inputs, and adds the signature's defaults.

        Raises:
            InvalidInputError: Names, dtypes or shapes do not fit.
        """
        return complete_inputs(
            signature,
            inputs,
            check_shapes=self.check_shapes,
            defaults=self.defaults.get(signature.compute, {}),
            feed_name=lambda alias: self._feed_name(signature.compute, alias),
        )

    def decoded(self, signature: Signature, inputs: Arrays) -> Arrays:
        """Decodes complete inputs where the signature says so.

        Raises:
            ImageDecodeError: An encoded image is not one.
            InvalidInputError: A message is no Example of the features that the signature describes.
        """
        if signature.decode is None:
            return inputs
        if isinstance(signature.decode, ExampleDecode):
            return decode_examples(inputs[signature.decode.input].tolist(), signature.decode)
        return self._decode(signature, signature.decode, inputs)

    def close(self) -> None:
        """Frees the model, down to the operating system. No request may hold the servable any more."""
        self.backend.close()
        release_memory()
        if self.closed is not None:
            self.closed()

    def _feed_name(self, signature: str, alias: str) -> str:
        definition = self.definitions.get(signature)
        return definition.inputs[alias].name if definition is not None and alias in definition.inputs else alias

    def _decode(self, signature: Signature, decode: ImageDecode, inputs: Arrays) -> Arrays:
        if signature.preprocess is None:
            raise InternalError(f"Signature of {self.name!r} decodes but has no preprocess graph. This is a bug.")
        graph = self.backend.signatures[signature.preprocess]
        (pixels,), (output,) = graph.inputs, graph.outputs
        rows = []
        for index, data in enumerate(inputs[decode.input].tolist()):
            where = f"Input {decode.input!r}, element {index}"
            try:
                image = decode_image(data, decode.channels)
            except ImageDecodeError as exc:
                raise ImageDecodeError(f"{where}: {exc.message}") from exc
            try:
                rows.append(self.backend.run(signature.preprocess, {pixels.name: image}, [output.name])[output.name])
            except (InvalidInputError, PredictionError) as exc:
                height, width, _ = image.shape
                raise type(exc)(
                    f"{where}: the model cannot preprocess this image of {width} x {height} pixels; a preprocess step "
                    f"without a resize takes one size only. {exc.message}"
                ) from exc
        if not rows:
            # No runtime sees it: the answer has no rows either.
            (spec,) = self.backend.signatures[signature.compute].inputs
            sizes = (max(0, size) for size in (spec.shape or ())[1:])
            return {spec.name: np.zeros((0, *sizes), dtype_by_name(spec.dtype).numpy)}
        return {output.name: np.stack(rows)}
