"""What a SavedModel says about itself, read without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from modelyard.artifact import SAVED_MODEL_NAMES, Signature, TensorSpec, known_method
from modelyard.errors import InvalidInputError, LoadError, UnsupportedError
from modelyard.serving.backends._files import read_model
from modelyard.wire import MAX_MESSAGE, dtype_by_enum, shape_from_proto, tensorflow_pb2

SAVED_MODEL_NAME, _TEXT_NAME = SAVED_MODEL_NAMES
#: Some 20 seconds of a processor.
_MAX_TEXT = 64 << 20
#: The pseudo-signature by which TF2 initialises a model; it cannot be called.
INIT_SIGNATURE = "__saved_model_init_op"


def is_saved_model(path: Path, *, as_text: bool = True) -> bool:
    """Whether a directory holds a SavedModel; ``as_text`` also one in protobuf's text format."""
    return (path / SAVED_MODEL_NAME).is_file() or (as_text and (path / _TEXT_NAME).is_file())


def read_meta_graph(path: Path, tags: Sequence[str]) -> tensorflow_pb2.MetaGraphDef:
    """Reads what a SavedModel directory says about its signatures and its format.

    Of a SavedModel as text, what is not said of them may be missing.
    """
    file = path / SAVED_MODEL_NAME
    try:
        if file.exists() or not (path / _TEXT_NAME).is_file():
            saved_model = tensorflow_pb2.SavedModel.FromString(read_model(file, MAX_MESSAGE))
        else:
            file = path / _TEXT_NAME
            text = read_model(file, _MAX_TEXT).decode("utf-8")
            # Our messages hold no more of TensorFlow's than is needed here.
            saved_model = text_format.Parse(text, tensorflow_pb2.SavedModel(), allow_unknown_field=True)
    except (DecodeError, UnicodeDecodeError, text_format.ParseError, RecursionError) as exc:
        raise LoadError(f"{file} cannot be read as a SavedModel: {exc}") from exc
    for graph in saved_model.meta_graphs:
        if set(tags) == set(graph.meta_info_def.tags):
            return graph
    known = [list(graph.meta_info_def.tags) for graph in saved_model.meta_graphs]
    raise LoadError(f"{file} has no meta graph with the tags {list(tags)}; it has the tag sets {known}.")


def callable_signatures(graph: tensorflow_pb2.MetaGraphDef) -> dict[str, Signature]:
    """The signatures that a request can call.

    A signature with a resource or variant among its tensors is left out: those
    cannot travel. It still shows in the metadata.
    """
    signatures = {}
    for name, definition in graph.signature_def.items():
        if name == INIT_SIGNATURE:
            continue
        try:
            inputs, outputs = _specs(definition.inputs), _specs(definition.outputs)
        except (InvalidInputError, UnsupportedError):
            continue
        method = known_method(definition.method_name)
        signatures[name] = Signature(inputs=inputs, outputs=outputs, compute=name, method=method)
    return signatures


def _specs(infos: Mapping[str, tensorflow_pb2.TensorInfo]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name=name, dtype=dtype_by_enum(info.dtype).name, shape=shape_from_proto(info.tensor_shape))
        for name, info in sorted(infos.items())
    )
