"""What a TFLite file says about itself that LiteRT's interpreter keeps to itself."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from modelyard.errors import LoadError
from modelyard.wire import tensorflow_pb2

#: Where TensorFlow Serving looks for signatures. The file's own came later, and it does not know them.
_METADATA = b"signature_defs_metadata"


def read_definitions(content: bytes, path: Path) -> dict[str, tensorflow_pb2.SignatureDef]:
    """The SignatureDefs that ``tensorflow/lite/tools/signature`` puts into files for TensorFlow Serving.

    Args:
        content: A file that LiteRT has accepted.
        path: Where it is from, for errors.

    Raises:
        LoadError: They are damaged.
    """
    from flatbuffers import flexbuffers

    model = _model(content)
    entries = [model.Metadata(index) for index in range(model.MetadataLength())]
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
        raise LoadError(f"The SignatureDefs of {path} cannot be read: {exc}") from exc


def custom_operations(content: bytes) -> list[str]:
    """Names of the operations that are none of TFLite's own: ``Flex...`` are TensorFlow's.

    Args:
        content: A file that LiteRT has accepted.
    """
    model = _model(content)
    codes = (model.OperatorCodes(index).CustomCode() for index in range(model.OperatorCodesLength()))
    return [code.decode() for code in codes if code]


def _model(content: bytes) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    return schema.Model.GetRootAs(content)


def tensor_of(name: str, tensors: Iterable[str]) -> str | None:
    """The tensor that a SignatureDef means: converters used to drop the ``:0`` that it has there.

    Args:
        name: The name in the SignatureDef.
        tensors: Names of the file's tensors.

    Returns:
        One of them; None where there is none of that name.
    """
    known = set(tensors)
    return next((each for each in (name, name.partition(":")[0]) if each in known), None)
