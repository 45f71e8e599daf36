"""What a SavedModel reads beside its graph: its own files, and text files of tables that are its own assets."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from modelyard.artifact import entries_below
from modelyard.errors import ArtifactError, ConversionError
from modelyard.wire import MAX_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.protobuf.meta_graph_pb2 import AssetFileDef, MetaGraphDef

#: The files and folders that a SavedModel consists of.
SAVED_MODEL_PARTS = ("saved_model.pb", "fingerprint.pb", "variables", "assets", "assets.extra")
#: They read a file into a table: what they load from is their second input.
TABLE_OPS = frozenset({"InitializeTableFromTextFile", "InitializeTableFromTextFileV2"})
_ASSETS = "saved_model_assets"
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
#: Of the files that are read as a whole: TensorFlow's messages have no more, and a fingerprint has a few bytes.
_MOST = {"saved_model.pb": MAX_MESSAGE, "fingerprint.pb": 1 << 20}


def check_files(directory: Path, *, links_out: bool) -> None:
    """Refuses a SavedModel with something else than files and folders; links may lead out of it where that is said.

    Whoever opens a pipe may wait for ever, and what a link leads to would be published.
    """
    root = directory.resolve()
    for name, most in _MOST.items():
        path = directory / name
        if path.is_file() and path.stat().st_size > most:
            raise ConversionError(
                f"{path} has {path.stat().st_size:,} bytes; expected up to {most:,}. Save the model again."
            )
    try:
        paths = list(_paths(directory))
    except ArtifactError as exc:
        raise ConversionError(f"{directory} is no SavedModel to export: {exc.message}") from exc
    for path in paths:
        try:
            mode = path.stat().st_mode
        except OSError:
            # What leads nowhere keeps nobody waiting; TensorFlow or the copy say so.
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ConversionError(f"{path} is a pipe, a socket or a device; expected a file or a folder. Remove it.")
        if path.is_symlink() and stat.S_ISDIR(mode):
            raise ConversionError(
                f"{path} is a link to a folder; expected a folder. Copy the model with cp -rL, which follows links."
            )
        if not (links_out or path.resolve().is_relative_to(root)):
            raise ConversionError(
                f"{path} is a link out of {directory}: the version would have a copy of what it leads to. If that is "
                "meant, copy the model with cp -rL, which follows links."
            )


def _paths(directory: Path) -> Iterator[Path]:
    for part in SAVED_MODEL_PARTS:
        path = directory / part
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from (path / name for name in entries_below(path))


def assets_of(graph: MetaGraphDef) -> list[AssetFileDef]:
    """The assets as loaders look for them: TensorFlow 1 has them in a collection."""
    from tensorflow.core.protobuf.meta_graph_pb2 import AssetFileDef

    if graph.asset_file_def or _ASSETS not in graph.collection_def:
        return list(graph.asset_file_def)
    try:
        return [AssetFileDef.FromString(each.value) for each in graph.collection_def[_ASSETS].any_list.value]
    except DecodeError as exc:
        raise ConversionError(f"The SavedModel's collection {_ASSETS!r} cannot be read: {exc}") from exc


def reads_other_files(graph: MetaGraphDef) -> bool:
    """Whether a table is read from a file that is not certainly an asset: a constant, for example, names any file."""
    scopes = {"": _by_name(graph.graph_def.node)} | {
        body.signature.name: _by_name(body.node_def) for body in graph.graph_def.library.function
    }
    found = [(scope, node) for scope, nodes in scopes.items() for node in nodes.values() if node.op in TABLE_OPS]
    if not found:
        return False
    origins = _Origins(graph, scopes)
    try:
        return not all(origins.is_asset(scope, node, 1) for scope, node in found)
    except RecursionError:
        # No model hands a name down that far.
        return True


class _Origins:
    """Follows names of files to where they come from, in the graph itself, which is the scope "", and its functions."""

    def __init__(self, graph: MetaGraphDef, scopes: Mapping[str, Mapping[str, NodeDef]]) -> None:
        self._scopes = scopes
        self._arguments = {
            body.signature.name: [each.name for each in body.signature.input_arg]
            for body in graph.graph_def.library.function
        }
        #: What loaders put paths of assets in the place of.
        self._assets = {node_name(asset.tensor_info.name) for asset in assets_of(graph)}
        self._objects = graph.object_graph_def.nodes
        #: By function, the objects that loaders bind to its last arguments.
        self._bound = {name: each.bound_inputs for name, each in graph.object_graph_def.concrete_functions.items()}
        self._callers: dict[str, list[tuple[str, NodeDef]]] = {}
        for scope, nodes in scopes.items():
            for node in nodes.values():
                for name in functions_of(node):
                    self._callers.setdefault(name, []).append((scope, node))
        self._variables = [node for nodes in scopes.values() for node in nodes.values() if node.op == "VarHandleOp"]
        self._seen: set[tuple[str, str]] = set()

    def is_asset(self, scope: str, node: NodeDef, index: int) -> bool:
        """Whether an input of a node is the path of an asset; true for one that is looked at already."""
        inputs = [node_name(each) for each in node.input if not each.startswith("^")]
        if index >= len(inputs):
            return False
        name = inputs[index]
        if (scope, name) in self._seen:
            return True
        self._seen.add((scope, name))
        origin = self._scopes[scope].get(name)
        if origin is not None and origin.op == "Identity":
            return self.is_asset(scope, origin, 0)
        if not scope and origin is not None and origin.op == "ReadVariableOp":
            return self._holds_assets(node_name(origin.input[0]))
        if not scope:
            return name in self._assets
        if origin is not None or name not in self._arguments[scope]:
            return False
        place = self._arguments[scope].index(name)
        return self._binds_asset(scope, place) and all(
            node.op in {scope, *_CALLS} and self.is_asset(caller, node, place)
            for caller, node in self._callers.get(scope, ())
        )

    def _holds_assets(self, variable: str) -> bool:
        """Whether a variable of the graph is an asset's path: it gets nothing else, and nobody else gets it."""
        nodes = self._scopes[""]
        if variable not in nodes or nodes[variable].op != "VarHandleOp":
            return False
        same = [each for each in self._variables if _shared_name(each) == _shared_name(nodes[variable])]
        users = [each for each in nodes.values() if variable in map(node_name, each.input)]
        assigned = [each for each in users if each.op == "AssignVariableOp"]
        return (
            len(same) == 1
            and {each.op for each in users} <= {"AssignVariableOp", "ReadVariableOp", "VarIsInitializedOp"}
            and bool(assigned)
            and all(self.is_asset("", each, 1) for each in assigned)
        )

    def _binds_asset(self, function: str, place: int) -> bool:
        """Whether a loader binds an asset to an argument, or nothing."""
        bound = self._bound.get(function, ())
        place -= len(self._arguments[function]) - len(bound)
        if place < 0:
            return True
        number = bound[place] if place < len(bound) else -1
        return 0 <= number < len(self._objects) and self._objects[number].WhichOneof("kind") == "asset"


def functions_of(node: NodeDef) -> set[str]:
    """Functions that a node may call: in its attributes, in those of functions there, or as its operation."""
    names, waiting = {str(node.op)}, list(node.attr.values())
    while waiting:
        value = waiting.pop()
        for called in (value.func, *value.list.func):
            names.add(called.name)
            waiting += called.attr.values()
    return names


def _by_name(nodes: Iterable[NodeDef]) -> dict[str, NodeDef]:
    return {node.name: node for node in nodes}


def _shared_name(variable: NodeDef) -> bytes:
    return bytes(variable.attr["shared_name"].s) or variable.name.encode()


def node_name(tensor: str) -> str:
    """The node that makes a tensor, or that an input waits for."""
    return tensor.removeprefix("^").partition(":")[0]
