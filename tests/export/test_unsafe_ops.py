"""What a hostile SavedModel may not do, wherever it hides that: in what loading calls, in attributes, in names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from modelyard.errors import ConversionError
from modelyard.export import export
from modelyard.export.sources._unsafe_ops import (
    _ATTRIBUTES,
    FILE_OPS,
    OTHER_OPS,
    PYTHON_OPS,
    read_saved_model,
    unsafe_ops,
)

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
