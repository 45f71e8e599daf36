"""What a SavedModel says about itself, read without TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from google.protobuf.message import DecodeError

from modelyard.errors import LoadError
from modelyard.wire import tensorflow_pb2

SAVED_MODEL_NAME = "saved_model.pb"


def read_meta_graph(path: Path, tags: Sequence[str]) -> tensorflow_pb2.MetaGraphDef:
    """Reads what a SavedModel directory says about its signatures and its format.

    Args:
        path: The directory that holds ``saved_model.pb``.
        tags: The tags of the meta graph to read.

    Returns:
        The meta graph; it has an ``object_graph_def`` in the TF2 format only.

    Raises:
        LoadError: The file is absent or damaged, or has no such meta graph.
    """
    file = path / SAVED_MODEL_NAME
    try:
        saved_model = tensorflow_pb2.SavedModel.FromString(file.read_bytes())
    except (OSError, DecodeError) as exc:
        raise LoadError(f"{file} cannot be read as a SavedModel: {exc}") from exc
    for graph in saved_model.meta_graphs:
        if set(tags) == set(graph.meta_info_def.tags):
            return graph
    known = [list(graph.meta_info_def.tags) for graph in saved_model.meta_graphs]
    raise LoadError(f"{file} has no meta graph with the tags {list(tags)}; it has the tag sets {known}.")
