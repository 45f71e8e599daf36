"""Lookups that refuse what is not in their vocabulary go on refusing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from tensorflow.core.framework.node_def_pb2 import NodeDef


def keep_assertions(
    nodes: RepeatedCompositeFieldContainer[NodeDef], *, suffix: str = "", vector_suffix: str = ""
) -> None:
    """Makes of an assertion over values that a lookup did not find something that converters keep.

    Keras checks so where ``num_oov_indices`` is 0. Converters drop every assertion, and -1 would then be looked up in
    an embedding: its last row. What is checked is gathered from a tensor of one row instead, at a row that is not
    there where the check fails: every runtime has an error for that.
    """
    formats = {node.name for node in nodes if node.op == "StringFormat"}
    checks = {
        f"^{node.name}": node.input[0]
        for node in nodes
        if node.op == "Assert" and any(name.partition(":")[0] in formats for name in node.input)
    }
    for node in [node for node in nodes if node.op == "Identity" and checks.keys() & set(node.input)]:
        for condition in [checks[name] for name in node.input if name in checks]:
            place = f"{node.name}/in_vocabulary"
            zero = nodes.add(op="Const", name=f"{place}/axis")
            zero.attr["dtype"].type = tf.int32.as_datatype_enum
            zero.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0, tf.int32))
            axis = f"{zero.name}{vector_suffix}"
            failed = nodes.add(op="LogicalNot", name=f"{place}/failed", input=[condition])
            row = nodes.add(op="Cast", name=f"{place}/row", input=[f"{failed.name}{suffix}"])
            row.attr["SrcT"].type, row.attr["DstT"].type = tf.bool.as_datatype_enum, tf.int32.as_datatype_enum
            rows = nodes.add(op="ExpandDims", name=f"{place}/rows", input=[node.input[0], axis])
            rows.attr["T"].CopyFrom(node.attr["T"])
            rows.attr["Tdim"].type = tf.int32.as_datatype_enum
            found = nodes.add(
                op="GatherV2", name=place, input=[f"{rows.name}{vector_suffix}", f"{row.name}{suffix}", axis]
            )
            found.attr["Tparams"].CopyFrom(node.attr["T"])
            found.attr["Tindices"].type = found.attr["Taxis"].type = tf.int32.as_datatype_enum
            node.input[0] = f"{found.name}{vector_suffix}"
