"""What a hostile SavedModel may not do, wherever it hides that: in what loading calls, in attributes, in names."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from modelyard.errors import ConversionError
from modelyard.export import export
from modelyard.export.cli import export_here
from modelyard.export.sources._unsafe_ops import (
    _ATTRIBUTES,
    FILE_OPS,
    OTHER_OPS,
    PYTHON_OPS,
    check_ops,
    read_saved_model,
    unsafe_ops,
)
from tests.support.hostile import make_large, nested_folders

#: How arguments are called that name a file, a machine or a graph as bytes.
_ARGUMENT = re.compile(
    r"file|path|dir(?!ection)|prefix|url|address|uri|mlir|graph_def|memory_region|patterns?$|data_source"
)
#: Operations with such an argument that means something else, or the file of a table, which is an asset.
HARMLESS = {
    "CTCBeamSearchDecoder", "ExperimentalSetStatsAggregatorDataset", "InitializeTableFromTextFile",
    "InitializeTableFromTextFileV2", "RegexFullMatch", "RegexReplace", "SetStatsAggregatorDataset",
    "StaticRegexFullMatch", "StaticRegexReplace", "TensorSliceDataset",
}  # fmt: skip
X = tf.TensorSpec([None, 4], tf.float32, name="x")


def test_every_operation_that_names_a_file_is_known() -> None:
    """Fails where a new TensorFlow has one that nobody has looked at."""
    found = set()
    for name in dir(tf.raw_ops):
        operation = getattr(tf.raw_ops, name)
        if callable(operation) and any(_ARGUMENT.search(each) for each in inspect.signature(operation).parameters):
            found.add(name)
    known = PYTHON_OPS | FILE_OPS | OTHER_OPS | _ATTRIBUTES.keys()
    assert found - known == HARMLESS
    assert len(found & known) > 40


class Writer(tf.saved_model.experimental.TrackableResource):
    """A table that writes a file when it is initialized."""

    def _create_resource(self) -> Any:
        return tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64)

    def _initialize(self) -> None:
        tf.io.write_file("/dev/null", "x")

    def _destroy_resource(self) -> None:
        pass


class Module(tf.Module):
    def __init__(self, folder: Path) -> None:
        (folder / "vocabulary.txt").write_text("a\nb\n")
        self.resource = Writer()
        assert self.resource.resource_handle is not None
        initializer = tf.lookup.TextFileInitializer(
            str(folder / "vocabulary.txt"), tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER, tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
        )  # fmt: skip
        self.table = tf.lookup.StaticHashTable(initializer, "?")

    @tf.function(input_signature=[X])
    def plain(self, x: Any) -> dict[str, Any]:
        return {"y": x * 2}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="x")])
    def words(self, x: Any) -> dict[str, Any]:
        return {"y": self.table.lookup(x)}

    @tf.function(input_signature=[X])
    def calls(self, x: Any) -> dict[str, Any]:
        @tf.function
        def inner(x: Any) -> Any:
            with tf.control_dependencies([tf.io.write_file("/dev/null", "x")]):
                return tf.identity(x)

        @tf.function
        def outer(x: Any) -> Any:
            return inner(x) * 2

        return {"y": outer(x)}


def changed(folder: Path, signature: str, change: Callable[[Any], None], *, resource: bool = False) -> Path:
    """A SavedModel whose graph is another than it was when it was saved."""
    module = Module(folder)
    if not resource:
        del module.resource
    tf.saved_model.save(module, str(folder / "m"), signatures={"serving_default": getattr(module, signature)})
    path = folder / "m" / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    change(saved.meta_graphs[0])
    path.write_bytes(saved.SerializeToString())
    (folder / "m" / "fingerprint.pb").unlink()
    return folder / "m"


def test_what_a_resource_does_when_it_is_loaded(tmp_path: Path) -> None:
    """A loader calls its functions, whether a signature names them or not."""

    def change(graph: Any) -> None:
        del graph.signature_def["__saved_model_init_op"]
        graph.collection_def.pop("saved_model_main_op", None)

    assert unsafe_ops(read_saved_model(changed(tmp_path, "plain", change, resource=True))) == ("WriteFile",)


def test_what_restoring_variables_does(tmp_path: Path) -> None:
    def change(graph: Any) -> None:
        graph.graph_def.node.add(name="hidden", op="WriteFile")
        (restore,) = (node for node in graph.graph_def.node if node.name == graph.saver_def.restore_op_name)
        restore.input.append("^hidden")

    assert unsafe_ops(read_saved_model(changed(tmp_path, "plain", change))) == ("WriteFile",)


def test_functions_in_the_attributes_of_functions(tmp_path: Path) -> None:
    def change(graph: Any) -> None:
        bodies = {body.signature.name: body for body in graph.graph_def.library.function}
        for body in bodies.values():
            for node in body.node_def:
                called = node.attr["f"].func if "f" in node.attr else None
                if called is not None and "inner" in called.name:
                    # What is called is named by who calls.
                    hidden, called.name = called.name, body.signature.name
                    called.attr["F"].func.name = hidden

    assert unsafe_ops(read_saved_model(changed(tmp_path, "calls", change))) == ("WriteFile",)


@pytest.mark.parametrize("name", ["../../secret.txt", "/etc/hostname"])
def test_assets_are_files_of_the_model(tmp_path: Path, name: str) -> None:
    def change(graph: Any) -> None:
        for asset in graph.asset_file_def:
            asset.filename = name

    with pytest.raises(ConversionError, match=f"names an asset outside of its folder: '{name}'"):
        export(changed(tmp_path, "words", change), tmp_path / "r", data="random")


def _constant(graph: Any, nodes: Any, name: str) -> str:
    node = nodes.add(name=name, op="Const")
    node.attr["dtype"].type = tf.string.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto("/etc/hostname"))
    return name


def _initializers(graph: Any) -> list[tuple[Any, Any]]:
    """Functions that read a table from a file, with the node that does it."""
    bodies = graph.graph_def.library.function
    return [(body, node) for body in bodies for node in body.node_def if node.op.startswith("InitializeTableFromText")]


def constant_in_the_initializer(graph: Any) -> None:
    for body, node in _initializers(graph):
        node.input[1] = f"{_constant(graph, body.node_def, 'evil')}:output:0"


def constant_behind_identities(graph: Any) -> None:
    for body, node in _initializers(graph):
        _constant(graph, body.node_def, "evil")
        identity = body.node_def.add(name="evil_too", op="Identity", input=["evil:output:0"])
        identity.attr["T"].type = tf.string.as_datatype_enum
        node.input[1] = "evil_too:output:0"


def constant_handed_to_the_initializer(graph: Any) -> None:
    """As TensorFlow Serving runs it: the graph calls the function."""
    names = {body.signature.name for body, _ in _initializers(graph)}
    (call,) = (each for each in graph.graph_def.node if each.attr["f"].func.name in names)
    assert call.input[0] == "ReadVariableOp"
    call.input[0] = _constant(graph, graph.graph_def.node, "evil")


def constant_in_the_variable(graph: Any) -> None:
    (assign,) = (each for each in graph.graph_def.node if each.op == "AssignVariableOp")
    assign.input[1] = _constant(graph, graph.graph_def.node, "evil")


def variable_of_the_same_name(graph: Any) -> None:
    (variable,) = (each for each in graph.graph_def.node if each.op == "VarHandleOp")
    graph.graph_def.node.add().CopyFrom(variable)
    graph.graph_def.node[-1].name = "another"
    graph.graph_def.node[-1].attr["shared_name"].s = variable.attr["shared_name"].s or variable.name.encode()


def variable_in_other_hands(graph: Any) -> None:
    (variable,) = (each for each in graph.graph_def.node if each.op == "VarHandleOp")
    graph.graph_def.node.add(name="other", op="StatefulPartitionedCall", input=[variable.name])


def another_object_bound_to_the_initializer(graph: Any) -> None:
    nodes = graph.object_graph_def.nodes
    for body, _ in _initializers(graph):
        bound = graph.object_graph_def.concrete_functions[body.signature.name].bound_inputs
        (place,) = (number for number, each in enumerate(bound) if nodes[each].WhichOneof("kind") == "asset")
        nodes.add().constant.operation = _constant(graph, graph.graph_def.node, "evil")
        bound[place] = len(nodes) - 1


def no_asset_at_all(graph: Any) -> None:
    del graph.asset_file_def[:]


def endless_identities(graph: Any) -> None:
    for body, node in _initializers(graph):
        for number in range(5000):
            body.node_def.add(name=f"i{number}", op="Identity", input=[f"i{number + 1}:output:0"])
        node.input[1] = "i0:output:0"


@pytest.mark.parametrize(
    "change",
    [
        constant_in_the_initializer, constant_behind_identities, constant_handed_to_the_initializer,
        constant_in_the_variable, variable_of_the_same_name, variable_in_other_hands,
        another_object_bound_to_the_initializer, no_asset_at_all, endless_identities,
    ],
)  # fmt: skip
def test_tables_are_read_from_assets(tmp_path: Path, change: Callable[[Any], None]) -> None:
    folder = changed(tmp_path, "words", change)
    assert unsafe_ops(read_saved_model(folder)) == ("InitializeTableFromTextFile of a file that is no asset",)
    with pytest.raises(
        ConversionError, match="touch the file system: InitializeTableFromTextFile of a file that is no"
    ):
        export(folder, tmp_path / "r", data="random")


def test_a_signature_reads_no_table(tmp_path: Path) -> None:
    """Loaders say where the assets are when they run initializers alone: later, a constant is what it says."""

    def change(graph: Any) -> None:
        (call,) = (
            each
            for each in graph.graph_def.node
            if each.attr["f"].func.name in {body.signature.name for body, _ in _initializers(graph)}
        )
        output = graph.signature_def["serving_default"].outputs["y"].name.partition(":")[0]
        (node,) = (each for each in graph.graph_def.node if each.name == output)
        node.input.append(f"^{call.name}")

    folder = changed(tmp_path, "words", change)
    assert unsafe_ops(read_saved_model(folder)) == ("InitializeTableFromTextFile outside of an initializer",)


def test_tables_of_assets_are_safe(tmp_path: Path) -> None:
    folder = changed(tmp_path, "words", lambda graph: None)
    assert unsafe_ops(read_saved_model(folder)) == ()
    # Loaded and saved again, the initializer is called by another function.
    module = tf.saved_model.load(str(folder))
    tf.saved_model.save(module, str(tmp_path / "again"), signatures=module.signatures)
    assert unsafe_ops(read_saved_model(tmp_path / "again")) == ()


def save_tensorflow_1(folder: Path) -> Path:
    v1 = tf.compat.v1
    (folder / "vocabulary.txt").write_text("a\nb\n")
    with v1.Graph().as_default() as graph, v1.Session() as session:
        kinds = tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE
        initializer = tf.lookup.TextFileInitializer(str(folder / "vocabulary.txt"), *kinds)
        table = v1.lookup.StaticHashTable(initializer, "?")
        x = v1.placeholder(tf.int64, [None], "x")
        y = table.lookup(x)
        session.run(v1.tables_initializer())
        info = v1.saved_model.build_tensor_info
        signature = v1.saved_model.build_signature_def({"x": info(x)}, {"y": info(y)}, "tensorflow/serving/predict")
        builder = v1.saved_model.Builder(str(folder / "m"))
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            {"serving_default": signature},
            graph.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            main_op=v1.tables_initializer(),
        )
        builder.save()
    return folder / "m"


def test_assets_of_tensorflow_1(tmp_path: Path) -> None:
    folder = save_tensorflow_1(tmp_path)
    graph = read_saved_model(folder)
    assert unsafe_ops(graph) == () and not graph.asset_file_def
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    (entry,) = saved.meta_graphs[0].collection_def["saved_model_assets"].any_list.value
    asset = type(graph.asset_file_def.add()).FromString(entry.value)
    for name in ("../../secret.txt", "/etc/hostname"):
        asset.filename = name
        entry.value = asset.SerializeToString()
        (folder / "saved_model.pb").write_bytes(saved.SerializeToString())
        with pytest.raises(ConversionError, match=f"names an asset outside of its folder: '{name}'"):
            export(folder, tmp_path / "r", data="random")
    entry.value = b"\xff"
    (folder / "saved_model.pb").write_bytes(saved.SerializeToString())
    with pytest.raises(ConversionError, match="collection 'saved_model_assets' cannot be read"):
        export(folder, tmp_path / "r", data="random")


def to_a_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def to_a_device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def to_a_link_out(path: Path) -> None:
    path.unlink(missing_ok=True)
    (path.parents[2] / "secret.txt").write_text("a\nb\n")
    path.symlink_to(path.parents[2] / "secret.txt")


def to_a_link_to_a_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(".")


@pytest.mark.parametrize("name", ["assets/vocabulary.txt", "assets/more", "variables/variables.index"])
@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (to_a_pipe, "is a pipe, a socket or a device; expected a file or a folder. Remove it"),
        (to_a_device, "is a pipe, a socket or a device"),
        (to_a_link_out, "is a link out of .*: the version would have a copy of what it leads to"),
        (to_a_link_to_a_folder, "is a link to a folder"),
    ],
)
def test_files_that_are_not_the_model_s(tmp_path: Path, name: str, damage: Callable[[Path], None], what: str) -> None:
    folder = changed(tmp_path, "words", lambda graph: None)
    damage(folder / name)
    with pytest.raises(ConversionError, match=f"{folder / name} {what}"):
        export(folder, tmp_path / "r", data="random")
    assert not (tmp_path / "r" / "1").exists()


def test_links_within_the_model_and_of_the_model_are_followed(tmp_path: Path) -> None:
    folder = changed(tmp_path, "words", lambda graph: None)
    (folder / "assets" / "vocabulary.txt").rename(folder / "words.txt")
    (folder / "assets" / "vocabulary.txt").symlink_to("../words.txt")
    (tmp_path / "link").symlink_to("m")
    check_ops(tmp_path / "link", read_saved_model(tmp_path / "link"))


def test_more_than_a_model_has(tmp_path: Path) -> None:
    folder = changed(tmp_path, "words", lambda graph: None)
    with nested_folders(folder / "assets"):
        with pytest.raises(ConversionError, match="assets has more than 100 folders in each other"):
            export(folder, tmp_path / "r", data="random")
        for name in ("fingerprint.pb", "saved_model.pb"):
            make_large(folder / name)
            with pytest.raises(ConversionError, match=f"{name} has 4,398,046,511,104 bytes; expected up to"):
                export(folder, tmp_path / "r", data="random")


def test_a_copy_for_which_there_is_no_room_is_not_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = changed(tmp_path, "words", lambda graph: None)
    make_large(folder / "assets" / "more")
    arguments = ["--data", "random", "--format", "saved_model", "--repository", str(tmp_path / "r")]
    assert export_here([str(folder), *arguments]) == 1
    assert re.search(f"{folder} has 4,398,046,5.* bytes, and below .* there is room for", capsys.readouterr().err)
    assert list((tmp_path / "r" / "m").iterdir()) == []


def test_errors_hold_no_escapes_of_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(graph: Any) -> None:
        graph.signature_def["\x1b[2J"].CopyFrom(graph.signature_def["serving_default"])

    folder = changed(tmp_path, "plain", change)
    arguments = ["--data", "random", "--signature", "absent", "--repository", str(tmp_path / "r")]
    assert export_here([str(folder), *arguments]) == 1
    error = capsys.readouterr().err
    assert "has no signature 'absent'; it has \\x1b[2J, serving_default" in error and "\x1b" not in error
