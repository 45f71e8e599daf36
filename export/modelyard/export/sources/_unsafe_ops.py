"""Operations that a served model must not have: they run Python or touch the file system.

TensorFlow's own advice is to treat a SavedModel as a program. Only what a request or a load can reach counts: every
SavedModel has a ``RestoreV2``, which is how its own variables come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from modelyard.errors import ConversionError
from modelyard.export.sources._saved_files import (
    TABLE_OPS,
    assets_of,
    check_files,
    functions_of,
    node_name,
    reads_other_files,
)

if TYPE_CHECKING:
    from tensorflow.core.framework.function_pb2 import FunctionDef
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

PYTHON_OPS = frozenset({"EagerPyFunc", "GeneratorDataset", "NumpyFunction", "PyFunc", "PyFuncStateless"})
#: How variables come and go.
SAVER_OPS = frozenset(
    {
        "MergeV2Checkpoints", "Restore", "RestoreSlice", "RestoreV2", "Save", "SaveSlices", "SaveV2",
    }
)  # fmt: skip
FILE_OPS = SAVER_OPS | frozenset(
    {
        "CSVDataset", "CSVDatasetV2", "CacheDataset", "CacheDatasetV2", "CalibrationStatisticsSaver",
        "CreateSummaryDbWriter", "CreateSummaryFileWriter", "DTensorRestoreV2", "DatasetToTFRecord", "DebugIdentity",
        "DebugIdentityV2", "DebugIdentityV3", "DebugNanCount", "DebugNumericSummary", "DeleteOldDirs",
        "DistributedSave", "DumpTensor", "ExperimentalCSVDataset", "ExperimentalDatasetToTFRecord",
        "ExperimentalLMDBDataset", "ExperimentalMatchingFilesDataset", "ExperimentalSqlDataset",
        "FileSystemSetConfiguration", "FixedLengthRecordDataset", "FixedLengthRecordDatasetV2",
        "FixedLengthRecordReader", "FixedLengthRecordReaderV2", "GenerateVocabRemapping", "ImmutableConst",
        "LMDBDataset", "LMDBReader", "ListSnapshotChunksDataset", "LoadAndRemapMatrix", "LoadDataset", "LoadDatasetV2",
        "MatchingFiles", "MatchingFilesDataset", "ReadFile", "RecordInput", "SaveDataset", "SaveDatasetV2",
        "SnapshotChunkDataset", "SnapshotDataset", "SnapshotDatasetReader", "SnapshotDatasetV2",
        "SnapshotNestedDatasetReader", "SqlDataset", "TFRecordDataset", "TFRecordDatasetV2", "TFRecordReader",
        "TFRecordReaderV2", "TextLineDataset", "TextLineReader", "TextLineReaderV2", "WholeFileReader",
        "WholeFileReaderV2", "WriteFile",
    }
)  # fmt: skip
#: They ask other machines, or run a graph that they have as bytes, whose operations nobody has seen.
OTHER_OPS = frozenset(
    {
        "DataServiceDataset", "DataServiceDatasetV2", "DataServiceDatasetV3", "DataServiceDatasetV4",
        "DatasetFromGraph", "MlirPassthroughOp", "RegisterDataset", "RegisterDatasetV2", "RemoteFusedGraphExecute",
        "RpcClient", "RpcServer",
    }
)  # fmt: skip
#: They read a file where this attribute names one.
_ATTRIBUTES = {"FixedUnigramCandidateSampler": "vocab_file", "Skipgram": "filename"}
#: What a loader calls of a resource, a table for example.
_RESOURCE_CALLS = ("_create_resource", "_initialize", "_destroy_resource")
INIT_SIGNATURE = "__saved_model_init_op"
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")


def read_saved_model(directory: Path, *, links_out: bool = False) -> MetaGraphDef:
    """Reads the meta graph with the tag ``serve``, without running anything; refuses files that are not its own."""
    from tensorflow.core.protobuf import saved_model_pb2

    path = directory / "saved_model.pb"
    check_files(directory, links_out=links_out)
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
    found = {_unsafe(node) for node in reachable(graph.graph_def, roots, _called_by_loaders(graph))}
    saver = [graph.saver_def.restore_op_name, graph.saver_def.filename_tensor_name]
    found |= {_unsafe(node) for node in reachable(graph.graph_def, saver)} - SAVER_OPS
    if reads_other_files(graph):
        found.add("InitializeTableFromTextFile of a file that is no asset")
    # Loaders say where the assets are when they run initializers, and not later.
    signatures = [
        info.name
        for name, definition in graph.signature_def.items()
        if name != INIT_SIGNATURE
        for info in definition.outputs.values()
    ]
    if any(node.op in TABLE_OPS for node in reachable(graph.graph_def, [*signatures, *saver])):
        found.add("InitializeTableFromTextFile outside of an initializer")
    return tuple(sorted(name for name in found if name))


def _called_by_loaders(graph: MetaGraphDef) -> set[str]:
    """Functions that loading calls by themselves: of resources, and of objects that restore themselves."""
    nodes = graph.object_graph_def.nodes
    called = {
        child.node_id
        for node in nodes
        if node.WhichOneof("kind") == "resource"
        for child in node.children
        if child.local_name in _RESOURCE_CALLS
    }
    for node in nodes:
        for saveable in node.saveable_objects.values():
            called |= {saveable.save_function, saveable.restore_function}
    functions: set[str] = set()
    for number in called:
        if 0 <= number < len(nodes):
            functions |= {*nodes[number].function.concrete_functions}
            functions.add(nodes[number].bare_concrete_function.concrete_function_name)
    return functions


def check_ops(directory: Path, graph: MetaGraphDef) -> None:
    """Refuses a SavedModel with such operations, and one whose assets are not its own files."""
    for asset in assets_of(graph):
        if PurePosixPath(asset.filename).is_absolute() or ".." in PurePosixPath(asset.filename).parts:
            raise ConversionError(f"{directory} names an asset outside of its folder: {asset.filename!r}.")
    names = unsafe_ops(graph)
    if names:
        raise ConversionError(
            f"{directory} has operations that run Python or touch the file system: {', '.join(names)}. The author of "
            "the model decides what they do. If you trust it, allow them with ExportOptions(allow_unsafe_ops=True) or "
            "--allow-unsafe-ops."
        )


def _unsafe(node: NodeDef) -> str:
    if node.op in PYTHON_OPS or node.op in FILE_OPS or node.op in OTHER_OPS:
        return str(node.op)
    if node.op in _ATTRIBUTES and node.attr[_ATTRIBUTES[node.op]].s:
        return str(node.op)
    # It prints to the streams of the process, or to any file.
    if node.op == "PrintV2" and node.attr["output_stream"].s.startswith(b"file://"):
        return "PrintV2 to a file"
    return ""


def reachable(graph: GraphDef, roots: Iterable[str], functions: Iterable[str] = ()) -> Iterator[NodeDef]:
    """Nodes that the roots depend on, with the whole body of every function that they call, or that is named."""
    nodes: Mapping[str, NodeDef] = {node.name: node for node in graph.node}
    bodies: Mapping[str, FunctionDef] = {body.signature.name: body for body in graph.library.function}
    waiting = [node_name(name) for name in roots]
    seen: set[str] = set()
    called: set[str] = set(functions)
    while waiting:
        name = waiting.pop()
        if name in seen or name not in nodes:
            continue
        seen.add(name)
        node = nodes[name]
        waiting += [node_name(each) for each in node.input]
        called |= functions_of(node)
        yield node
    done: set[str] = set()
    while called - done:
        name = (called - done).pop()
        done.add(name)
        if name in bodies:
            for node in bodies[name].node_def:
                called |= functions_of(node)
                yield node
