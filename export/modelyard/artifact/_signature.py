"""The signature: one notion across training, export, serving and clients.

A signature is an optional decode (encoded bytes to one tensor per example), an
optional per-example preprocess graph, and a batched compute graph. The last is
what a runtime executes; the first two are how ``image_bytes`` works without
TensorFlow.

:class:`Signature` describes; it is what a manifest stores and what serving
reads. :class:`SignatureFunction` and :class:`EncodedImageFunction` are what a
task declares: the same description together with the functions to trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from modelyard.errors import ManifestError
from modelyard.wire import dtype_names

PREDICT_METHOD = "tensorflow/serving/predict"
CLASSIFY_METHOD = "tensorflow/serving/classify"
REGRESS_METHOD = "tensorflow/serving/regress"
METHODS = (PREDICT_METHOD, CLASSIFY_METHOD, REGRESS_METHOD)
DEFAULT_SIGNATURE = "serving_default"

PREPROCESS_SUFFIX = ".preprocess"


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Name, dtype and shape of one input or output.

    Attributes:
        name: The alias that requests use.
        dtype: TensorFlow's name of the dtype, such as ``float32`` or ``string``.
        shape: Sizes; ``-1`` where any size is accepted; None for unknown rank.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    def __post_init__(self) -> None:
        if not self.name:
            raise ManifestError("A tensor has no name; expected the alias that requests use.")
        if self.dtype not in dtype_names():
            raise ManifestError(
                f"Tensor {self.name!r} has dtype {self.dtype!r}; expected one of {', '.join(dtype_names())}."
            )
        if self.shape is not None and any(size < -1 for size in self.shape):
            raise ManifestError(
                f"Tensor {self.name!r} has shape {list(self.shape)}; expected sizes >= 0, or -1 for any size."
            )


@dataclass(frozen=True, kw_only=True)
class ImageDecode:
    """Decode of an encoded image (JPEG or PNG) to uint8 ``[height, width, channels]``.

    Attributes:
        input: The string input that holds one encoded image per example.
        channels: 1 (grey) or 3 (RGB): what the decoder delivers whatever the file holds.
    """

    input: str
    channels: Literal[1, 3] = 3
    kind: Literal["image"] = "image"


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What a servable offers under one name.

    Attributes:
        inputs: What a request sends.
        outputs: What an answer holds.
        method: One of :data:`METHODS`.
        compute: Name of the batched graph; a signature that only decodes
            names the signature whose graph it shares.
        decode: How the encoded input becomes a tensor; None for plain tensors.
        preprocess: Name of the per-example graph between decode and compute.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    compute: str
    method: str = PREDICT_METHOD
    decode: ImageDecode | None = None
    preprocess: str | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ManifestError(f"Signature method {self.method!r} is unknown; expected one of {', '.join(METHODS)}.")
        if (self.decode is None) != (self.preprocess is None):
            raise ManifestError("A signature has either both decode and preprocess, or neither.")
        if self.decode is not None and [spec.name for spec in self.inputs] != [self.decode.input]:
            raise ManifestError(
                f"A signature that decodes {self.decode.input!r} must have exactly that input; "
                f"received {[spec.name for spec in self.inputs]}."
            )


@dataclass(frozen=True, kw_only=True)
class SignatureFunction:
    """A batched function to export as a signature.

    Attributes:
        inputs: Its inputs; dimension 0 is the batch, ``-1``.
        function: Called with one keyword argument per input; returns a mapping
            from output name to tensor. It is traced, never called eagerly.
        method: One of :data:`METHODS`.
    """

    inputs: tuple[TensorSpec, ...]
    function: Callable[..., Mapping[str, Any]]
    method: str = PREDICT_METHOD


@dataclass(frozen=True, kw_only=True)
class EncodedImageFunction:
    """A signature that starts from encoded images and ends in another signature's graph.

    Attributes:
        compute: Name of the :class:`SignatureFunction` that it feeds, which
            must have exactly one input.
        preprocess: From uint8 ``[height, width, channels]`` (any height and
            width) to one example of that input, without the batch dimension.
        input: Name of the string input, one encoded image per example.
        channels: What the decoder delivers: 1 (grey) or 3 (RGB).
    """

    compute: str
    preprocess: Callable[[Any], Any]
    input: str = "image_bytes"
    channels: Literal[1, 3] = 3


@dataclass(frozen=True, kw_only=True)
class VerificationData:
    """Real examples that every exported format must agree on.

    Attributes:
        inputs: For each signature name, each input name, an array of N examples.
        labels: True class ids, int64 ``[N]``; None where there are no classes.
        class_names: Names of the classes in order; empty where there are none.
        class_output: Output that holds the predicted class id.
        description: Where the examples come from, for reports.
    """

    inputs: Mapping[str, Mapping[str, npt.NDArray[Any]]]
    labels: npt.NDArray[np.int64] | None = None
    class_names: tuple[str, ...] = ()
    class_output: str = "class_id"
    description: str = ""
