"""Operations that a served model must not have: they run Python or touch the file system.

TensorFlow's own advice is to treat a SavedModel as a program. Only what a request or a load can reach counts: every
SavedModel has a ``RestoreV2``, which is how its own variables come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from modelyard.errors import ConversionError

if TYPE_CHECKING:
    from tensorflow.core.framework.function_pb2 import FunctionDef
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

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


def read_saved_model(directory: Path) -> MetaGraphDef:
    """Reads the meta graph with the tag ``serve``, without running anything."""
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


def unsafe_ops(graph: MetaGraphDef) -> tuple[str, ...]:
    """Names the operations that run Python or touch files, of those that loading or serving can reach."""
    roots: list[str] = []
    for definition in graph.signature_def.values():
        roots += [info.name for info in (*definition.inputs.values(), *definition.outputs.values())]
    for name in _INIT_COLLECTIONS:
        roots += graph.collection_def[name].node_list.value if name in graph.collection_def else []
    found = {_unsafe(node) for node in reachable(graph.graph_def, roots)}
    return tuple(sorted(name for name in found if name))


def check_ops(directory: Path, graph: MetaGraphDef) -> None:
    """Refuses a SavedModel with such operations."""
    names = unsafe_ops(graph)
    if names:
        raise ConversionError(
            f"{directory} has operations that run Python or touch the file system: {', '.join(names)}. The author of "
            "the model decides what they do. If you trust it, allow them with ExportOptions(allow_unsafe_ops=True) or "
            "--allow-unsafe-ops."
        )


def _unsafe(node: NodeDef) -> str:
    if node.op in PYTHON_OPS or node.op in FILE_OPS:
        return str(node.op)
    # It prints to the streams of the process, or to any file.
    if node.op == "PrintV2" and node.attr["output_stream"].s.startswith(b"file://"):
        return "PrintV2 to a file"
    return ""


def reachable(graph: GraphDef, roots: Iterable[str]) -> Iterator[NodeDef]:
    """Nodes that the roots depend on, with the whole body of every function that they call."""
    nodes: Mapping[str, NodeDef] = {node.name: node for node in graph.node}
    bodies: Mapping[str, FunctionDef] = {body.signature.name: body for body in graph.library.function}
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


def _functions(node: NodeDef) -> set[str]:
    names = {called.name for value in node.attr.values() for called in (value.func, *value.list.func) if called.name}
    # A function may also be called as if it were an operation.
    return names | {node.op}


def _node_name(tensor: str) -> str:
    return tensor.removeprefix("^").partition(":")[0]
