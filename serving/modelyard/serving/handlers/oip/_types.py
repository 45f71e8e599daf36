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
    """A requested output.

    Attributes:
        classification: Return the largest so many values with their indices; 0 for the tensor itself.
    """

    name: str
    binary: bool = False
    classification: int = 0


@dataclass(frozen=True, kw_only=True)
class InferRequest:
    """One inference.

    Attributes:
        version: A version; empty for the newest.
        inputs: Decodes the inputs, with the signature once it is known; called on a worker thread.
        outputs: The outputs asked for; empty for all.
        small: The body is small, so that decoding it takes no time to speak of.
        caller: Who waits for the answer; None for a caller that always waits.
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
        datatype: Such as ``FP32``.
    """

    name: str
    datatype: str
    array: npt.NDArray[Any]
    binary: bool


@dataclass(frozen=True, kw_only=True)
class InferResult:
    """The answer to an :class:`InferRequest`."""

    model: str
    version: str
    id: str
    parameters: Mapping[str, Parameter]
    outputs: tuple[InferOutput, ...]
