"""What a prediction is, with no protocol in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from modelyard.artifact import DEFAULT_SIGNATURE, Signature

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """Which servable and signature a request means.

    Attributes:
        name: The model.
        version: A version; None for the newest loaded one, or the label's.
        label: A version label, instead of a version.
        signature: A signature; empty means ``serving_default``.
    """

    name: str
    version: int | None = None
    label: str | None = None
    signature: str = ""

    @property
    def signature_name(self) -> str:
        """The signature's name, resolved."""
        return self.signature or DEFAULT_SIGNATURE

    def describe(self) -> str:
        """The spec as error messages quote it, in TensorFlow Serving's words."""
        return f"Latest({self.name})" if self.version is None else f"Specific({self.name}, {self.version})"


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictRequest:
    """One prediction.

    Attributes:
        spec: Which servable and signature.
        inputs: Called with the signature once it is resolved, where the
            prediction is computed, so that transports decode a large body off
            the event loop and with the dtypes of the very version that will answer.
        output_filter: Outputs to return; empty for all.
        small: The body is small, so that decoding it takes no time to speak of.
    """

    spec: ModelSpec
    inputs: Callable[[Signature], Arrays]
    output_filter: tuple[str, ...] = ()
    small: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The answer to a :class:`PredictRequest`.

    Attributes:
        spec: The request's spec with version and signature filled in.
        outputs: Arrays by output name.
    """

    spec: ModelSpec
    outputs: Arrays
