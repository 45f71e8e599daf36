"""The signatures of TFLite files that LiteRT's interpreter does not know, named as TensorFlow Serving names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from modelyard.artifact._signature import DEFAULT_SIGNATURE, PREDICT_METHOD, known_method
from modelyard.errors import LoadError
from modelyard.wire import tensorflow_pb2

#: Where TensorFlow Serving looks for signatures. The file's own came later, and it does not know them.
_METADATA = b"signature_defs_metadata"


@dataclass(frozen=True, kw_only=True)
class TfliteSignature:
    """One signature over the tensors of a file's first graph.

    Attributes:
        inputs: Names of tensors, by the names that requests use.
        outputs: Names of tensors, by the names that answers use.
        method: As in a SignatureDef.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    method: str = PREDICT_METHOD


def tflite_signatures(
    content: bytes, *, inputs: Sequence[str], outputs: Sequence[str], has_own: bool
) -> dict[str, TfliteSignature]:
    """The signatures of a file, where it has none of its own.

    Where it has SignatureDefs for TensorFlow Serving
    (``tensorflow/lite/tools/signature``), these count, before any of its own.
    Else one signature is made of the names of its tensors.

    Args:
        content: A file that LiteRT has accepted.
        inputs: Names of the tensors that go in.
        outputs: Names of the tensors that come out.
        has_own: Whether the interpreter knows signatures of the file.

    Returns:
        Signatures by name; empty where the file's own count.

    Raises:
        LoadError: The SignatureDefs are damaged, or name tensors that there are not.
    """
    definitions = _definitions(content)
    if definitions:
        return {
            name: TfliteSignature(
                inputs=_named(name, definition.inputs, inputs),
                outputs=_named(name, definition.outputs, outputs),
                method=known_method(definition.method_name),
            )
            for name, definition in definitions.items()
        }
    if has_own:
        return {}
    return {DEFAULT_SIGNATURE: TfliteSignature(inputs=_aliases(inputs), outputs=_aliases(outputs))}


def call_tflite(interpreter: Any, runner: Any, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Calls a signature of a file.

    Args:
        interpreter: LiteRT's.
        runner: Of the signature.
        inputs: Arrays by name.

    Returns:
        Copies: the next call writes into the memory that LiteRT's own answers view.

    Raises:
        ValueError: As LiteRT does.
        RuntimeError: As LiteRT does.
    """
    try:
        return {name: np.array(value) for name, value in runner(**inputs).items()}
    except ValueError as exc:
        # So says LiteRT 2.3 of an output without an element, which it has computed like any other.
        if str(exc) != "Invalid tensor size.":
            raise
    details = runner.get_output_details()
    return {name: read_tflite(interpreter, each, runner._subgraph_index) for name, each in details.items()}


def read_tflite(interpreter: Any, detail: Mapping[str, Any], graph: int = 0) -> npt.NDArray[Any]:
    """Reads an output of the last call.

    Args:
        interpreter: LiteRT's.
        detail: What it says of the output since that call.
        graph: Index of the graph that it is of.
    """
    if 0 in detail["shape"]:
        return np.zeros(detail["shape"], object if detail["dtype"] in (np.bytes_, np.str_) else detail["dtype"])
    return np.array(interpreter.get_tensor(detail["index"], graph))


def tflite_has_state(content: bytes) -> bool:
    """Whether a call of a file changes what later calls answer.

    Args:
        content: A file that LiteRT has accepted.
    """
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(content)
    codes = {model.OperatorCodes(index).BuiltinCode() for index in range(model.OperatorCodesLength())}
    return schema.BuiltinOperator.ASSIGN_VARIABLE in codes


def _definitions(content: bytes) -> dict[str, tensorflow_pb2.SignatureDef]:
    from ai_edge_litert import schema_py_generated as schema
    from flatbuffers import flexbuffers

    model = schema.Model.GetRootAs(content)
    entries = (model.Metadata(index) for index in range(model.MetadataLength()))
    buffers = [model.Buffers(entry.Buffer()) for entry in entries if entry.Name() == _METADATA]
    if not buffers:
        return {}
    try:
        found = flexbuffers.GetRoot(buffers[0].DataAsNumpy().tobytes()).AsMap
        return {
            key.AsKey: tensorflow_pb2.SignatureDef.FromString(bytes(value.AsStringBytes))
            for key, value in zip(found.Keys, found.Values, strict=True)
        }
    # The reader of flexbuffers raises whatever it stumbles over.
    except (DecodeError, AttributeError, ValueError, TypeError, IndexError, OverflowError) as exc:
        raise LoadError(f"The file's SignatureDefs cannot be read: {exc}.") from exc


def _named(name: str, infos: Mapping[str, tensorflow_pb2.TensorInfo], tensors: Sequence[str]) -> dict[str, str]:
    named = {}
    for alias, info in sorted(infos.items()):
        # Converters used to drop the :0 that SignatureDefs have.
        found = next((each for each in (info.name, info.name.partition(":")[0]) if each in tensors), None)
        if found is None:
            raise LoadError(
                f"Signature {name!r} says that {alias!r} is the tensor {info.name!r}; the file has {sorted(tensors)}."
            )
        named[alias] = found
    return named


def _aliases(names: Sequence[str]) -> dict[str, str]:
    """The names without what follows the colon, as upstream has them; two that would be one keep a ``:1`` and on."""
    short = Counter(name.partition(":")[0] for name in names)
    return {
        name.partition(":")[0] if short[name.partition(":")[0]] == 1 else name.removesuffix(":0"): name
        for name in names
    }
