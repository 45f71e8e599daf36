"""Frozen graphs: what both foreign converters start from.

A frozen function has no variable that a converter could lose. Known gaps of the
converters are closed here too, on the graph that both get.

Large weights are not in the graph but beside it. TensorFlow writes a graph anew in every step (tracing, pruning,
inlining, saving, loading), keeps the bodies of functions until the process ends, and a model of 552 MB (VGG16) came to
18 GB that way in either converter.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import (
    _FunctionConverterDataInEager,
    _replace_variables_by_constants,
    _run_inline_graph_optimization,
)

from modelyard.export.formats._draws import WRITES, release_draws
from modelyard.export.rewrites import Target, all_nodes, kinds_of, rewrite, widen, without_cases
from modelyard.export.sources import node_name
from modelyard.export.text import keep_assertions

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from tensorflow.core.framework.function_pb2 import FunctionDef
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.python.types.core import ConcreteFunction, PolymorphicFunction

#: Bytes from which a constant is large. Below it nothing is to be gained, and what TensorFlow folds may be folded.
LARGE = 1 << 20
_RESIZES = frozenset({"ResizeArea", "ResizeBicubic", "ResizeBilinear"})
#: What makes of a function a call into XLA, which nothing inlines.
_COMPILED = ("_XlaMustCompile", "_noinline")


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A function without variables, but for those of its state."""

    #: A ``tf.function`` of the original's inputs and then the large weights, with an input signature.
    function: PolymorphicFunction
    #: Values of the large weights, in order.
    weights: Sequence[npt.NDArray[Any]]
    #: Copies of its lookup tables by the ``shared_name`` of their nodes.
    tables: Mapping[str, tf.lookup.StaticHashTable]
    #: Variables that it still reads and writes.
    state: Sequence[tf.Variable] = ()

    @property
    def inputs(self) -> int:
        """How many inputs the original has."""
        return len(self.function.input_signature) - len(self.weights)

    def bound(self) -> tuple[PolymorphicFunction, list[tf.Variable | tf.lookup.StaticHashTable]]:
        """The function of the inputs alone, and the variables and tables that it reads.

        They belong in the SavedModel that is made of it: variables are the one thing
        that TensorFlow does not write into every copy of a graph, and tables are filled when it is loaded.
        """
        variables = [tf.Variable(value, trainable=False) for value in self.weights]

        def call(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
            outputs: dict[str, tf.Tensor] = self.function(*tensors, *variables)
            return {name: named(value, name) for name, value in outputs.items()}

        signature = self.function.input_signature[: self.inputs]
        return tf.function(call, input_signature=signature, autograph=False), [
            *variables,
            *self.state,
            *self.tables.values(),
        ]


def named(value: tf.Tensor, name: str) -> tf.Tensor:
    """A tensor by a name of an output, as far as TensorFlow has such names for nodes."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    return tf.identity(value, name=safe if re.match(r"[A-Za-z0-9.]", safe) else f"output{safe}")


def freeze(
    function: PolymorphicFunction,
    *,
    target: Target | None = None,
    widened: Iterable[str] = (),
    state: Collection[int] = (),
) -> Frozen:
    """A function without variables, with the same inputs and outputs by name."""
    concrete = without_cases(function.get_concrete_function())
    forget_initializers(concrete)
    variables = {id(each.handle): each for each in concrete.variables if id(each) in state}
    captures = zip(concrete.graph.external_captures, concrete.graph.internal_captures, strict=True)
    kept = {inside.op.name: variables[id(outside)] for outside, inside in captures if id(outside) in variables}
    data = _FunctionConverterDataInEager(
        func=concrete, lower_control_flow=False, aggressive_inlining=False, variable_names_denylist=kept
    )
    release_draws(data.graph_def, [tensor.name for tensor in concrete.outputs])
    graph, converted = _replace_variables_by_constants(data)
    del data
    for body in graph.library.function:
        _gather_from_constants(body)
    widen(graph, widened)
    weights = _take_out(graph)
    left = {node.name for node in graph.node}
    kept = {name: variable for name, variable in kept.items() if name in left}
    tables = _take_tables(concrete, graph, converted, kept)
    inputs = [each.name for each in concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]]
    inputs += [f"{name}:0" for name in (*weights, *kept)]
    constant = _rewritten(graph, inputs, [tensor.name for tensor in concrete.outputs])
    # A frozen function returns the outputs of the original flattened, which sorts a mapping by key.
    names = sorted(concrete.structured_outputs)
    if target is not None and not kept:
        constant = rewrite(constant, target, tables)
        used = {node.attr["shared_name"].s.decode() for node in all_nodes(constant.graph.as_graph_def())}
        tables = {name: table for name, table in tables.items() if name in used}

    def call(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        values = constant(*tensors, *(variable.handle for variable in kept.values()))
        values = list(values) if isinstance(values, list | tuple) else [values]
        for name, value in zip(names, values, strict=True):
            # A graph that was rewritten no longer knows what its functions return.
            value.set_shape(concrete.structured_outputs[name].shape)
        return {name: named(value, name) for name, value in zip(names, values, strict=True)}

    values = tuple(weights.values())
    specs = [tf.TensorSpec(each.shape, each.dtype, name=f"modelyard_weight_{i}") for i, each in enumerate(values)]
    given = [
        tf.TensorSpec(spec.shape, tf.float32 if spec.dtype.name in widened else spec.dtype, name=spec.name)
        for spec in function.input_signature
    ]
    signature = [*given, *specs]
    frozen = tf.function(call, input_signature=signature, autograph=False)
    return Frozen(function=frozen, weights=values, tables=tables, state=tuple(kept.values()))


def only_draws(function: PolymorphicFunction) -> bool:
    """Whether all variables that a function writes to are states of random generators, which formats do without."""
    concrete = function.get_concrete_function()
    graph = _FunctionConverterDataInEager(func=concrete, lower_control_flow=False, aggressive_inlining=False).graph_def
    release_draws(graph, [tensor.name for tensor in concrete.outputs])
    return not any(node.op.startswith(WRITES) for node in all_nodes(graph))


def forget_initializers(concrete: ConcreteFunction) -> None:
    """Empties a collection that TensorFlow cannot save, and warns of: contents are read from the tables."""
    concrete.graph.clear_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)


def _take_tables(
    concrete: ConcreteFunction, graph: GraphDef, converted: Sequence[int], kept: Collection[str]
) -> dict[str, tf.lookup.StaticHashTable]:
    """Makes nodes of tables of the captured handles of tables, and copies those tables."""
    captures = zip(concrete.graph.external_captures, concrete.graph.internal_captures, strict=True)
    taken = {*kept, *(concrete.graph.internal_captures[index].op.name for index in converted)}
    handles = {inside.op.name: outside for outside, inside in captures if inside.op.name not in taken}
    nodes = {node.name: node for node in graph.node}
    tables: dict[str, tf.lookup.StaticHashTable] = {}
    for find in [node for node in graph.node if node.op == "LookupTableFindV2"]:
        node = nodes[node_name(find.input[0])]
        while node.op == "Identity":
            node = nodes[node_name(node.input[0])]
        if node.name not in handles:
            continue
        # Only the lookup says what types a table has, and TensorFlow ends the process where they are others.
        kinds = tf.as_dtype(find.attr["Tin"].type), tf.as_dtype(find.attr["Tout"].type)
        handle, name = handles.pop(node.name), node.name
        content = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=kinds[0], Tvalues=kinds[1])
        nothing = tf.zeros([], kinds[1]) if kinds[1] != tf.string else ""
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(*content), nothing)
        node.Clear()
        node.name, node.op = name, "HashTableV2"
        node.attr["shared_name"].s = table._shared_name.encode()
        node.attr["key_dtype"].type, node.attr["value_dtype"].type = (kind.as_datatype_enum for kind in kinds)
        tables[table._shared_name] = table
    if handles:
        raise ValueError("a lookup table (or another resource) is used inside of a loop or a branch: look up outside")
    _keep_shapes(graph)
    return tables


def _keep_shapes(graph: GraphDef) -> None:
    """Gives values of lookups the shape of their keys: it was known by the Python object that was called only."""
    for find in [node for node in graph.node if node.op == "LookupTableFindV2"]:
        name, keys, kind = find.name, find.input[1], find.attr["Tout"]
        find.name = f"{name}/find"
        shape = graph.node.add(op="Shape", name=f"{name}/shape", input=[keys])
        shape.attr["T"].CopyFrom(find.attr["Tin"])
        shape.attr["out_type"].type = tf.int32.as_datatype_enum
        values = graph.node.add(op="Reshape", name=name, input=[find.name, shape.name])
        values.attr["T"].CopyFrom(kind)
        values.attr["Tshape"].type = tf.int32.as_datatype_enum


def _gather_from_constants(body: FunctionDef) -> None:
    """Lookups in a variable inside a loop or a branch: TensorFlow 2.21 makes them anew outside of functions only."""
    for node in [each for each in body.node_def if each.op in ("ResourceGather", "ResourceGatherNd")]:
        node.attr["Tparams"].CopyFrom(node.attr["dtype"])
        for attribute in ("dtype", "validate_indices"):
            node.attr.pop(attribute, None)
        if node.op == "ResourceGatherNd":
            node.op = "GatherNd"
            continue
        axis = body.node_def.add(op="Const", name=f"{node.name}/axis")
        axis.attr["dtype"].type = node.attr["Taxis"].type = tf.int32.as_datatype_enum
        axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(node.attr["batch_dims"].i, tf.int32))
        node.op = "GatherV2"
        node.input.append(f"{axis.name}:output:0")


def _take_out(graph: GraphDef) -> dict[str, npt.NDArray[Any]]:
    """Makes inputs of the large constants of a graph, and gives their values by name of the node."""
    weights: dict[str, npt.NDArray[Any]] = {}
    for node in graph.node:
        # Strings, and one number for all, are not stored as content.
        if node.op != "Const" or len(node.attr["value"].tensor.tensor_content) < LARGE:
            continue
        value = weights[node.name] = tf.make_ndarray(node.attr["value"].tensor)
        name = node.name
        node.Clear()
        node.name, node.op = name, "Placeholder"
        node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(value.shape).as_proto())
    return weights


def _rewritten(graph: GraphDef, inputs: list[str], outputs: list[str]) -> ConcreteFunction:
    """A graph as a function: with integer images cast in front of each interpolating resize, and nothing compiled.

    TensorFlow's kernels take uint8 and give float32, where those of ONNX and TFLite give what they take. tf2onnx 1.17
    and the TFLite converter of TensorFlow 2.21 translate one to the other without a cast; the first makes an invalid
    graph of it, the second stops.

    Keras compiles every convolution with groups by XLA (those of ConvNeXt, for
    one). Such a call is not inlined, and tf2onnx has nothing to make of it.
    """
    _cast_images(graph.node, suffix="")
    keep_assertions(graph.node)
    for body in graph.library.function:
        # Inside a function an output is named by its argument, too.
        _cast_images(body.node_def, suffix=":y:0")
        keep_assertions(body.node_def, suffix=":y:0", vector_suffix=":output:0")
    compiled = any([_forget_compilation(owner) for owner in (*graph.library.function, *graph.node)])
    constant = _imported(graph, inputs, outputs, suffix="frozen")
    if compiled:
        inlined = _run_inline_graph_optimization(constant, lower_control_flow=False, aggressive_inlining=False)
        constant = _imported(inlined, inputs, outputs, suffix="inlined")
    return constant


def _imported(graph: GraphDef, inputs: list[str], outputs: list[str], *, suffix: str) -> ConcreteFunction:
    _rename_functions(graph, suffix)
    imported = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph, name=""), [])
    return imported.prune(inputs, outputs)


def _rename_functions(graph: GraphDef, suffix: str) -> None:
    """Gives every function of a graph another name: TensorFlow refuses one name for two definitions."""
    names = {body.signature.name: f"{body.signature.name}_{suffix}" for body in graph.library.function}
    for body in graph.library.function:
        body.signature.name = names[body.signature.name]
    for node in all_nodes(graph):
        for attribute in node.attr.values():
            for called in (attribute.func, *attribute.list.func):
                if called.name in names:
                    called.name = names[called.name]


def _forget_compilation(owner: NodeDef | FunctionDef) -> bool:
    """Removes the attributes from a node, or from a function and its nodes."""
    owners = [owner, *getattr(owner, "node_def", ())]
    compiled = [each for each in owners if _COMPILED[0] in each.attr]
    for each in compiled:
        for attribute in _COMPILED:
            each.attr.pop(attribute, None)
    return bool(compiled)


def _cast_images(nodes: RepeatedCompositeFieldContainer[NodeDef], *, suffix: str) -> None:
    resizes = [node for node in nodes if node.op in _RESIZES and tf.as_dtype(node.attr["T"].type).is_integer]
    for node in resizes:
        cast = nodes.add(op="Cast", name=f"{node.name}/as_float", input=[node.input[0]])
        cast.attr["SrcT"].type = node.attr["T"].type
        cast.attr["DstT"].type = node.attr["T"].type = tf.float32.as_datatype_enum
        node.input[0] = f"{cast.name}{suffix}"


#: By format, what its runtimes have no operations for, or only slow and coarse ones that cast to and fro.
_WIDENED: Mapping[str, frozenset[str]] = {
    "onnx": frozenset({"bfloat16", "float16"}),
    "tflite": frozenset({"bfloat16", "float16", "float64"}),
}
#: What TensorFlow rounds a number by, as a share of it.
ROUNDING: Mapping[str, float] = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def widened_dtypes(function: PolymorphicFunction, format: str) -> frozenset[str]:
    """Dtypes of a function that a format computes in float32."""
    unknown = _WIDENED.get(format, frozenset())
    # A double among floats is a constant that converters fold: only what computes in doubles is computed in floats.
    return frozenset(dtype for dtype in float_dtypes(function) if dtype in unknown)


def float_dtypes(function: PolymorphicFunction) -> frozenset[str]:
    """Dtypes of floats that a function computes with."""
    graph = function.get_concrete_function().graph.as_graph_def()
    kinds = {kind for node in all_nodes(graph) if node.op != "Const" for kind in kinds_of(node)}
    return frozenset(name for name in ("bfloat16", "float16", "float64") if tf.as_dtype(name).as_datatype_enum in kinds)
