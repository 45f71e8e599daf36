"""What the Open Inference Protocol exchanges, with no transport in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from modelyard.artifact import Signature
from modelyard.serving.requests import Arrays, Caller

Parameter = bool | int | float | str


@dataclass(frozen=True, kw_only=True)
class RequestedOutput:
    """One output that a request asks for.

    Attributes:
        name: Its name.
        binary: Over REST, whether it goes into the binary part.
        classification: Return the largest so many values with their indices; 0 for the tensor itself.
    """

    name: str
    binary: bool = False
    classification: int = 0


@dataclass(frozen=True, kw_only=True)
class InferRequest:
    """One inference.

    Attributes:
        model: The model.
        version: A version; empty for the newest.
        id: Echoed.
        parameters: Echoed, but for those that steer the transport.
        inputs: Decodes the inputs, with the signature once it is known; called on a worker thread.
        outputs: The outputs asked for; empty for all.
        binary: Over REST, whether all outputs go into the binary part where none is asked for by name.
        small: The body is small, so that decoding it takes no time to speak of.
        caller: Who waits for the answer; None for somebody who waits for ever.
        size: Bytes of the body; 0 where the transport does not say.
    """

    model: str
    inputs: Callable[[Signature], Arrays]
    version: str = ""
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    outputs: tuple[RequestedOutput, ...] = ()
    binary: bool = False
    small: bool = False
    caller: Caller | None = None
    size: int = 0


@dataclass(frozen=True, kw_only=True)
class InferOutput:
    """One output.

    Attributes:
        name: Its name.
        datatype: Such as ``FP32``.
        array: Its values.
        binary: As :attr:`RequestedOutput.binary`.
    """

    name: str
    datatype: str
    array: npt.NDArray[Any]
    binary: bool


@dataclass(frozen=True, kw_only=True)
class InferResult:
    """The answer to an :class:`InferRequest`.

    Attributes:
        model: The model.
        version: The version that answered.
        id: The request's.
        parameters: The request's, but for those that steer the transport.
        outputs: The outputs, in the order asked for.
    """

    model: str
    version: str
    id: str
    parameters: Mapping[str, Parameter]
    outputs: tuple[InferOutput, ...]


@dataclass(frozen=True, kw_only=True)
class TensorMetadata:
    """One input or output of a model.

    Attributes:
        name: Its name.
        datatype: Such as ``FP32``.
        shape: Sizes, -1 for any. The protocol has no unknown rank: it shows as a single -1.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class OipModelMetadata:
    """What a model's metadata request is answered with.

    Attributes:
        name: The model.
        versions: The versions that can answer, oldest first.
        platform: Such as ``onnx_onnxv1``.
        inputs: Inputs of the signature.
        outputs: Its outputs.
    """

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


@dataclass(frozen=True, kw_only=True)
class IndexEntry:
    """One line of the repository index.

    Attributes:
        name: The model.
        version: A version; empty where the model has none.
        state: READY, LOADING, UNLOADING or UNAVAILABLE.
        reason: Why it is unavailable.
    """

    name: str
    version: str
    state: str
    reason: str = ""
