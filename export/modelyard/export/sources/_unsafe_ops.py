"""Operations that a served model must not have: they run Python or touch the file system.

TensorFlow's own advice is to treat a SavedModel as a program. Only what a
request or a load can reach counts: every SavedModel has a ``RestoreV2``, which
is how its own variables come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from modelyard.errors import ConversionError

PYTHON_OPS = frozenset({"EagerPyFunc", "GeneratorDataset", "NumpyFunction", "PyFunc", "PyFuncStateless"})
FILE_OPS = frozenset(
    {
        "CreateSummaryFileWriter", "DeleteOldDirs", "FileSystemSetConfiguration", "FixedLengthRecordDataset",
        "FixedLengthRecordDatasetV2", "FixedLengthRecordReader", "FixedLengthRecordReaderV2", "LMDBDataset",
        "LMDBReader", "LoadDataset", "LoadDatasetV2", "MatchingFiles", "MatchingFilesDataset", "MergeV2Checkpoints",
        "ReadFile", "Restore", "RestoreSlice", "RestoreV2", "Save", "SaveDataset", "SaveDatasetV2", "SaveSlices",
        "SaveV2", "SnapshotDataset", "SnapshotDatasetV2", "SqlDataset", "TFRecordDataset", "TFRecordDatasetV2",
        "TFRecordReader", "TFRecordReaderV2", "TextLineDataset", "TextLineReader", "TextLineReaderV2",
        "WholeFileReader", "WholeFileReaderV2", "WriteFile",
    }
)  # fmt: skip
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")


def read_saved_model(directory: Path) -> Any:
    """Reads the meta graph with the tag ``serve``, without running anything.

    Args:
        directory: Holds ``saved_model.pb``.

    Returns:
        TensorFlow's ``MetaGraphDef``.

    Raises:
        ConversionError: The file is no SavedModel or has no such meta graph.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    path = directory / "saved_model.pb"
    try:
        saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    except (OSError, DecodeError) as exc:
        raise ConversionError(f"{path} cannot be read as a SavedModel: {exc}") from exc
    for graph in saved.meta_graphs:
        if set(graph.meta_info_def.tags) == {"serve"}:
            return graph
    known = [sorted(graph.meta_info_def.tags) for graph in saved.meta_graphs]
    raise ConversionError(f"{path} has no meta graph with the tag 'serve'; it has the tag sets {known}.")


def unsafe_ops(graph: Any) -> tuple[str, ...]:
    """Names the operations that run Python or touch files, of those that loading or serving can reach.

    Args:
        graph: From :func:`read_saved_model`.

    Returns:
        Names of operations, sorted, each once.
    """
    roots: list[str] = []
    for definition in graph.signature_def.values():
        roots += [info.name for info in (*definition.inputs.values(), *definition.outputs.values())]
    for name in _INIT_COLLECTIONS:
        roots += graph.collection_def[name].node_list.value if name in graph.collection_def else []
    found = {_unsafe(node) for node in reachable(graph.graph_def, roots)}
    return tuple(sorted(name for name in found if name))


def check_ops(directory: Path, graph: Any) -> None:
    """Refuses a SavedModel with such operations.

    Args:
        directory: For the message.
        graph: From :func:`read_saved_model`.

    Raises:
        ConversionError: There are some; the message names them.
    """
    names = unsafe_ops(graph)
    if names:
        raise ConversionError(
            f"{directory} has operations that run Python or touch the file system: {', '.join(names)}. Whoever made "
            "the model decides what they do. If you trust it, allow them with ExportOptions(allow_unsafe_ops=True) or "
            "--allow-unsafe-ops."
        )


def _unsafe(node: Any) -> str:
    if node.op in PYTHON_OPS or node.op in FILE_OPS:
        return str(node.op)
    # It prints to the streams of the process, or to any file.
    if node.op == "PrintV2" and node.attr["output_stream"].s.startswith(b"file://"):
        return "PrintV2 to a file"
    return ""


def reachable(graph: Any, roots: Iterable[str]) -> Iterator[Any]:
    """Nodes that the roots depend on, with the whole body of every function that they call.

    Args:
        graph: TensorFlow's ``GraphDef``.
        roots: Names of tensors.

    Yields:
        TensorFlow's ``NodeDef`` messages.
    """
    nodes: Mapping[str, Any] = {node.name: node for node in graph.node}
    bodies: Mapping[str, Any] = {body.signature.name: body for body in graph.library.function}
    waiting = [_node_name(name) for name in roots]
    seen: set[str] = set()
    called: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in nodes:
            continue
        seen.add(name)
        node = nodes[name]
        waiting += [_node_name(each) for each in node.input]
        called |= _functions(node)
        yield node
    done: set[str] = set()
    while called - done:
        name = (called - done).pop()
        done.add(name)
        if name in bodies:
            for node in bodies[name].node_def:
                called |= _functions(node)
                yield node


def _functions(node: Any) -> set[str]:
    names = {called.name for value in node.attr.values() for called in (value.func, *value.list.func) if called.name}
    # A function may also be called as if it were an operation.
    return names | {node.op}


def _node_name(tensor: str) -> str:
    return tensor.removeprefix("^").partition(":")[0]
