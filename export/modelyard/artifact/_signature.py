"""The signature: one notion across training, export, serving and clients.

A signature is an optional decode (encoded bytes to tensors), an optional per-example preprocess graph, and a batched
compute graph. The last is what a runtime executes; the first two are how ``image_bytes`` and serialized ``tf.Example``
messages work without TensorFlow.

:class:`Signature` describes; it is what a manifest stores and what serving reads. :class:`SignatureFunction`,
:class:`EncodedImageFunction` and :class:`ExampleFunction` are what a task declares: the same description together with
the functions to trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
FEATURE_DTYPES = ("float32", "int64", "string")
_DEFAULT_KINDS: Mapping[str, tuple[type, ...]] = {"float32": (float, int), "int64": (int,), "string": (str,)}

PREPROCESS_SUFFIX = ".preprocess"


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Name, dtype and shape of one input or output.

    Attributes:
        name: The alias that requests use.
        dtype: TensorFlow's name of the dtype, such as ``float32`` or ``string``.
        shape: Sizes; ``-1``, or None as TensorFlow says it, where any size is accepted; None for unknown rank.
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
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(-1 if size is None else size for size in self.shape))
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
class FeatureSpec:
    """One feature of a ``tf.Example``: what ``tf.io.FixedLenFeature`` describes.

    Attributes:
        name: Its key in the Example.
        dtype: ``float32``, ``int64`` or ``string``: an Example holds nothing else.
        shape: Of one example, every size given; ``()`` for one value.
        default: Values for an Example without the feature, flat, as many as the
            shape holds; strings as text. None where the feature is required.
        input: Name of the graph's input that takes it, ``[N, *shape]``; None for the feature's own name.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    default: tuple[float | int | str, ...] | None = None
    input: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in FEATURE_DTYPES:
            raise ManifestError(
                f"Feature {self.name!r} has dtype {self.dtype!r}; expected one of {', '.join(FEATURE_DTYPES)}: "
                "a tf.Example holds nothing else."
            )
        if any(size < 0 for size in self.shape):
            raise ManifestError(f"Feature {self.name!r} has shape {list(self.shape)}; expected every size to be given.")
        if self.default is None:
            return
        kinds = _DEFAULT_KINDS[self.dtype]
        if len(self.default) != math.prod(self.shape) or not all(type(value) in kinds for value in self.default):
            raise ManifestError(
                f"Feature {self.name!r} has the default {list(self.default)}; expected {math.prod(self.shape)} values "
                f"of {self.dtype}."
            )

    @property
    def tensor(self) -> TensorSpec:
        """The graph's input that takes the feature of a whole batch."""
        return TensorSpec(name=self.input or self.name, dtype=self.dtype, shape=(-1, *self.shape))


@dataclass(frozen=True, kw_only=True)
class ExampleDecode:
    """Decode of serialized ``tf.Example`` messages to one dense tensor per feature.

    Attributes:
        input: The string input that holds one message per example.
        features: What is taken from each message; others are ignored.
    """

    input: str
    features: tuple[FeatureSpec, ...]
    kind: Literal["example"] = "example"

    def __post_init__(self) -> None:
        for names in ([each.name for each in self.features], [each.tensor.name for each in self.features]):
            if not names or len(set(names)) != len(names):
                raise ManifestError(f"The features of {self.input!r} are {names}; expected at least one, each once.")


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What a servable offers under one name.

    Attributes:
        inputs: What a request sends.
        outputs: What an answer holds.
        method: One of :data:`METHODS`.
        compute: Name of the batched graph; a signature that only decodes names the signature whose graph it shares.
        decode: How the encoded input becomes a tensor; None for plain tensors.
        preprocess: Name of the per-example graph between decode and compute; images have one, Examples need none.
        stateful: What it answers depends on earlier calls: it writes variables, or reads some that another signature
            writes. Servers compute such calls one at a time, each for itself, and replay no warm-up.
        unbatched: The first dimensions are no batch, though of any size: such as the nodes and the edges of one graph.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    compute: str
    method: str = PREDICT_METHOD
    decode: ImageDecode | ExampleDecode | None = None
    preprocess: str | None = None
    stateful: bool = False
    unbatched: bool = False

    @property
    def batched(self) -> bool:
        """Whether the first dimension of every input is a batch of any size. Else requests never share a call."""
        return not self.unbatched and all(spec.shape is None or spec.shape[:1] == (-1,) for spec in self.inputs)

    @property
    def takes_calls(self) -> bool:
        """Whether an example is a whole call: an input has no first dimension, or one of a fixed size other than 1."""
        fixed = any(spec.shape is not None and spec.shape[:1] not in ((-1,), (1,)) for spec in self.inputs)
        return self.unbatched or fixed

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ManifestError(f"Signature method {self.method!r} is unknown; expected one of {', '.join(METHODS)}.")
        if isinstance(self.decode, ImageDecode) != (self.preprocess is not None):
            raise ManifestError("A signature has either both an image decode and preprocess, or neither.")
        if self.decode is not None and [spec.name for spec in self.inputs] != [self.decode.input]:
            raise ManifestError(
                f"A signature that decodes {self.decode.input!r} must have exactly that input; "
                f"received {[spec.name for spec in self.inputs]}."
            )


def known_method(name: str) -> str:
    """The method that a SignatureDef says, or predict where it says another or none."""
    return name if name in METHODS else PREDICT_METHOD


def holds_class_ids(dtype: str, shape: tuple[int, ...] | None) -> bool:
    """Whether an output can be class ids: integers ``[N]`` or ``[N, 1]``."""
    return dtype.startswith(("int", "uint")) and shape is not None and (len(shape) == 1 or shape[1:] == (1,))


def holds_class_scores(dtype: str, shape: tuple[int, ...] | None) -> bool:
    """Whether an output can be a value for each class: floats ``[N, K]`` of at least two classes, or of open ``K``."""
    # The largest of one value is always the first: the sigmoid of a binary classifier tells no class that way.
    return dtype.startswith(("float", "bfloat")) and shape is not None and len(shape) == 2 and shape[1] not in (0, 1)


def class_ids(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The class of each example, ``[N]``.

    From class ids, integers ``[N]`` or ``[N, 1]``; or from a value for each class, floats ``[N, K]``.
    """
    if values.dtype.kind in "iu":
        return values.reshape(len(values))
    classes: npt.NDArray[np.intp] = values.argmax(-1)
    return classes


@dataclass(frozen=True, kw_only=True)
class SignatureFunction:
    """A function to export as a signature.

    Attributes:
        inputs: Its inputs. Where dimension 0 of each is ``-1``, it is the batch; a function that has another input, a
            scalar or one of a fixed size, is called with what a request brings, as it is.
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
        compute: Name of the :class:`SignatureFunction` that it feeds, which must have exactly one input.
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
class ExampleFunction:
    """A signature that starts from serialized ``tf.Example`` messages.

    TensorFlow Serving's Classify, Regress and MultiInference send nothing else. They want the input to be named
    ``inputs``, and of the outputs: ``classes`` (string ``[N, K]``) and ``scores`` (float32 ``[N, K]``), at least one of
    them, for classify; ``outputs`` (float32 ``[N]`` or ``[N, 1]``) for regress.

    Attributes:
        features: What each Example holds.
        function: Called with one keyword argument per feature, ``[N, *shape]``; returns a mapping from output name to
            tensor. It is traced, never called eagerly.
        method: One of :data:`METHODS`.
        input: Name of the string input, one serialized message per example.
    """

    features: tuple[FeatureSpec, ...]
    function: Callable[..., Mapping[str, Any]]
    method: str = PREDICT_METHOD
    input: str = "inputs"


AnyFunction = SignatureFunction | EncodedImageFunction | ExampleFunction


@dataclass(frozen=True, kw_only=True)
class VerificationData:
    """Real examples that every exported format must agree on.

    Attributes:
        inputs: For each signature name, each input name, an array of N examples.
        labels: True class ids, int64 ``[N]``; None where there are no classes.
        class_names: Names of the classes in order; empty where there are none.
        class_output: Output that holds the predicted class id.
        description: Where the examples come from, for reports.
        others: By signature, further examples whose free axes have other sizes: of each size, arrays by input name.
        expected: By signature, what the library or program that a file was made from answers, by output name: to
            ``inputs``, and then to each of ``others``. Nothing where the model is asked itself.
    """

    inputs: Mapping[str, Mapping[str, npt.NDArray[Any]]]
    labels: npt.NDArray[np.int64] | None = None
    class_names: tuple[str, ...] = ()
    class_output: str = "class_id"
    description: str = ""
    others: Mapping[str, Sequence[Mapping[str, npt.NDArray[Any]]]] = field(default_factory=dict)
    expected: Mapping[str, Sequence[Mapping[str, npt.NDArray[Any]]]] = field(default_factory=dict)
