"""Nodes of ONNX in place of one of TensorFlow, with what all operators over strings have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tf2onnx.graph import Graph, Node

#: onnx.TensorProto's numbers: to import onnx takes a second.
FLOAT, INT32, INT64, STRING, BOOL, UINT32, UINT64 = 1, 6, 7, 8, 9, 12, 13
#: Of onnxruntime: it splits by regular expressions, and hashes.
OWN_DOMAIN = "com.microsoft"


class Nodes:
    """Makes nodes in place of one of TensorFlow."""

    def __init__(self, context: Graph, node: Node, name: str) -> None:
        self._context, self._name, self._outputs = context, name, list(node.output)
        self._shapes, self._dtypes = node.output_shapes, node.output_dtypes
        context.remove_node(name)

    def make(
        self, op: str, inputs: Sequence[object], dtype: int, *, shape: Sequence[int] | None = None, domain: str = "",
        **attributes: Any,
    ) -> str:  # fmt: skip
        """A node of one output; inputs are names of tensors or constants."""
        return self.make_many(op, inputs, [dtype], shapes=[shape], domain=domain, **attributes)[0]

    def make_many(
        self, op: str, inputs: Sequence[object], dtypes: Sequence[int], *, shapes: Sequence[Sequence[int] | None] = (),
        domain: str = "", branches: dict[str, Any] | None = None, **attributes: Any,
    ) -> list[str]:  # fmt: skip
        """A node of several outputs."""
        shapes = shapes or [None] * len(dtypes)
        made = self._context.make_node(
            op, [self.constant(each) for each in inputs], attr=attributes, name=_new_name(f"{self._name}/{op}"),
            output_count=len(dtypes), shapes=list(shapes), dtypes=list(dtypes), domain=domain, branches=branches,
        )  # fmt: skip
        return list(made.output)

    def constant(self, value: object) -> str:
        """The name of a constant; what is a name already stays."""
        if isinstance(value, str):
            return value
        return str(self._context.make_const(_new_name(f"{self._name}/const"), value).output[0])

    def done(self, *tensors: str) -> None:
        """Gives tensors the names of the outputs."""
        for index, (tensor, output) in enumerate(zip(tensors, self._outputs, strict=True)):
            self._context.make_node(
                "Identity", [tensor], outputs=[output], name=f"{self._name}/output/{index}",
                shapes=[self._shapes[index] or self._context.get_shape(tensor)], dtypes=[self._dtypes[index]],
            )  # fmt: skip

    def dtype(self, index: int) -> int:
        """Of an output."""
        return int(self._dtypes[index])

    def set_dtype(self, index: int, dtype: int) -> None:
        """Makes an output of another dtype than TensorFlow's."""
        self._dtypes[index] = dtype

    def cast(self, tensor: str, dtype: int) -> str:
        return self.make("Cast", [tensor], dtype, shape=self._context.get_shape(tensor), to=dtype)

    def flat(self, tensor: str, dtype: int) -> str:
        return self.make("Reshape", [tensor, np.array([-1])], dtype, shape=[-1])

    def rows(self, texts: str, op: str, **attributes: Any) -> str:
        """Applies an operator of onnxruntime to the values of a tensor; the first axis is that of the values."""
        more = self.make("Concat", [self.flat(texts, STRING), strings("")], STRING, shape=[-1], axis=0)
        made = self.make(op, [more], STRING, **attributes)
        return self.make("Slice", [made, np.array([0]), np.array([-1]), np.array([0])], STRING)

    def tokens(self, texts: str, **attributes: Any) -> str:
        """The tokens of each text, ``[N, K]``, filled up with empty strings; no token is empty."""
        made = self.rows(texts, "Tokenizer", domain=OWN_DOMAIN, mark=0, pad_value="", mincharnum=1, **attributes)
        # Of no text at all onnxruntime makes one axis.
        count = self.make("Size", [self.flat(texts, STRING)], INT64, shape=[])
        rows = self.make("Reshape", [count, np.array([1])], INT64, shape=[1])
        length = self.make("Shape", [made], INT64, shape=[1], start=-1)
        return self.make(
            "Reshape", [made, self.make("Concat", [rows, length], INT64, shape=[2], axis=0)], STRING, shape=[-1, -1],
            allowzero=1,
        )  # fmt: skip

    def loop(
        self, count: str, state: Sequence[str], dtype: int, step: Callable[[Nodes, str, list[str]], list[str]]
    ) -> list[str]:
        """Takes a number of steps."""
        context = self._context.create_new_graph_with_same_config()
        context.parent_graph = self._context
        inside = copy(self)
        inside._context = context
        index, go_on, goes_on = (_new_name(f"{self._name}/loop/{each}") for each in ("index", "go_on", "goes_on"))
        before = [_new_name(f"{self._name}/loop/before") for _ in state]
        context.add_graph_input(index, INT64, [])
        context.add_graph_input(go_on, BOOL, [])
        for each in before:
            context.add_graph_input(each, dtype, [-1])
        context.make_node("Identity", [go_on], outputs=[goes_on], shapes=[[]], dtypes=[BOOL])
        context.add_graph_output(goes_on, BOOL, [])
        for each in step(inside, index, before):
            context.add_graph_output(each, dtype, [-1])
        return self.make_many(
            "Loop", [count, np.array(True), *state], [dtype] * len(state), shapes=[[-1]] * len(state),
            branches={"body": context},
        )  # fmt: skip

    def joined(self, pieces: str) -> str:
        """Joins pieces ``[N, K]`` to ``[N]``, column by column."""

        def step(inside: Nodes, index: str, state: list[str]) -> list[str]:
            piece = inside.make("Gather", [pieces, index], STRING, shape=[-1], axis=1)
            return [inside.make("StringConcat", [state[0], piece], STRING, shape=[-1])]

        size = self.make("Shape", [pieces], INT64, shape=[2])
        rows, columns = (
            self.make("Gather", [size, np.array(each)], INT64, shape=np.shape(each), axis=0) for each in ([0], 1)
        )
        return self.loop(columns, [self.make("Expand", [strings(""), rows], STRING, shape=[-1])], STRING, step)[0]

    def like(self, values: str, source: str, dtype: int = STRING) -> str:
        """Values in the shape of another tensor."""
        shape = self.make("Shape", [source], INT64)
        return self.make("Reshape", [values, shape], dtype, allowzero=1)

    def indices(self, mask: str) -> str:
        """Where a mask ``[N, K]`` holds, ``[found, 2]``."""
        found = self.make("NonZero", [mask], INT64, shape=[2, -1])
        return self.make("Transpose", [found], INT64, shape=[-1, 2], perm=[1, 0])

    def chosen(self, values: str, mask: str, dtype: int) -> str:
        """The values ``[N, K]`` where a mask holds, ``[found]``."""
        return self.make("Compress", [self.flat(values, dtype), self.flat(mask, BOOL)], dtype, shape=[-1])

    def splits(self, mask: str) -> str:
        """Where the rows of what a mask ``[N, K]`` chooses begin and end, ``[N + 1]``."""
        lengths = self.make("ReduceSum", [self.cast(mask, INT64), np.array([1])], INT64, shape=[-1], keepdims=0)
        ends = self.make("CumSum", [lengths, np.array(0)], INT64, shape=[-1])
        return self.make("Concat", [np.array([0]), ends], INT64, shape=[-1], axis=0)

    def filled(self, pieces: str) -> str:
        return self.make("Not", [self.make("StringEqual", [pieces, strings("")], BOOL)], BOOL)


def _new_name(begin: str) -> str:
    from tf2onnx import utils

    return str(utils.make_name(begin))


def strings(*values: str) -> Any:
    return np.array(values, object)


def text_of(node: Node, attribute: str) -> str:
    value = node.get_attr_value(attribute, b"")
    return value.decode() if isinstance(value, bytes) else str(value)


def constant_text(node: Node, index: int) -> str:
    if not node.inputs[index].is_const():
        raise ValueError(f"input {index} of {node.type} is no constant")
    value = np.asarray(node.inputs[index].get_tensor_value(as_list=False)).item()
    return value.decode() if isinstance(value, bytes) else str(value)
