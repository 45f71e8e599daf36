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
    """A requested output."""

    name: str
    binary: bool = False
    #: Return the largest so many values with their indices; 0 for the tensor itself.
    classification: int = 0


@dataclass(frozen=True, kw_only=True)
class InferRequest:
    """One inference."""

    model: str
    #: Decodes the inputs, with the signature once it is known; called on a worker thread.
    inputs: Callable[[Signature], Arrays]
    #: A version; empty for the newest.
    version: str = ""
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    #: The outputs asked for; empty for all.
    outputs: tuple[RequestedOutput, ...] = ()
    binary: bool = False
    #: The body is small, so that decoding it takes no time to speak of.
    small: bool = False
    #: Who waits for the answer; None for a caller that always waits.
    caller: Caller | None = None
    #: Bytes of the body; 0 where the transport does not say.
    size: int = 0


@dataclass(frozen=True, kw_only=True)
class InferOutput:
    """One output."""

    name: str
    #: Such as ``FP32``.
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
