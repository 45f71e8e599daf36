"""TFLite graphs without the operators that LiteRT (2.3) lets read or write other memory, or end the process.

These take what a request holds at its word: an index that drops an axis (``x[i]``), the lengths of
``reverse_sequence``, the order of a transposition, the crops of ``batch_to_space``, and the remainder of the least
integer by -1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.errors import LoadError


def prepare_tflite(content: bytes) -> bytes:
    """The file, with operators in place of those that would follow an index out of range: it is an error then.

    Args:
        content: A file that LiteRT has accepted.

    Raises:
        LoadError: There is one that cannot be replaced.
    """
    from ai_edge_litert import schema_py_generated as schema

    changes = {getattr(schema.BuiltinOperator, name): change for name, change in _CHANGES.items()}
    if operator_kinds(content).isdisjoint(changes):
        return content
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    changed = [_Graph(schema, model, graph).change(changes) for graph in model.subgraphs]
    if not any(changed):
        return content
    if any(buffer.offset for buffer in model.buffers):
        raise LoadError("it is larger than 2 GB and has operators that LiteRT does not check")
    import flatbuffers

    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def operator_kinds(content: bytes) -> set[int]:
    """The operators of a file, as ``BuiltinOperator`` numbers them."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(content)
    codes = (model.OperatorCodes(index) for index in range(model.OperatorCodesLength()))
    return {_kind(code.BuiltinCode(), code.DeprecatedBuiltinCode()) for code in codes}


def _kind(code: int, old: int) -> int:
    """Files of before TensorFlow 2.4 have the number in another field."""
    return max(code, old)


class _Graph:
    """A graph, whose operators are written again in their order."""

    def __init__(self, schema: Any, model: Any, graph: Any) -> None:
        self.schema = schema
        self._model, self._graph = model, graph
        self._operators: list[Any] = []
        kind = schema.BuiltinOperator.SHAPE
        self._shapes = {each.outputs[0] for each in graph.operators or () if self._kind_of(each) == kind}

    def change(self, changes: dict[int, Callable[[_Graph, Any], bool]]) -> bool:
        """Whether there was something to change."""
        changed = False
        for operator in self._graph.operators or ():
            change = changes.get(self._kind_of(operator))
            if change is None or not change(self, operator):
                self._operators.append(operator)
            else:
                changed = True
        self._graph.operators = self._operators
        return changed

    def keep(self, operator: Any, place: int, tensor: int) -> None:
        """The operator itself, with another tensor for one of its inputs."""
        operator.inputs = operator.inputs.copy()
        operator.inputs[place] = tensor
        self._operators.append(operator)

    def tensor(self, index: int) -> Any:
        return self._graph.tensors[index]

    def sizes_of_shape(self, index: int) -> int | None:
        """How many axes a tensor has of which this is the shape; None where it is no shape, or that is not known."""
        tensor = self.tensor(index)
        signature = tensor.shapeSignature
        fixed = index in self._shapes and len(tensor.shape) == 1 and (signature is None or signature[0] >= 0)
        return int(tensor.shape[0]) if fixed else None

    def known(self, index: int) -> npt.NDArray[np.int64] | None:
        """The numbers of a constant tensor of integers; None of any other."""
        tensor = self.tensor(index)
        data = self._model.buffers[tensor.buffer].data
        kinds = {self.schema.TensorType.INT32: np.int32, self.schema.TensorType.INT64: np.int64}
        if data is None or len(data) == 0 or tensor.type not in kinds:
            return None
        values = np.frombuffer(np.asarray(data, np.uint8).tobytes(), kinds[tensor.type])
        return values.astype(np.int64).reshape(tensor.shape if tensor.shape is not None else ())

    def rank(self, index: int) -> int:
        shape = self.tensor(index).shape
        return 0 if shape is None else len(shape)

    def constant(self, values: int | Sequence[int], like: int | None = None) -> int:
        """A tensor of integers: int32, or of the dtype of another."""
        kind = self.schema.TensorType.INT32 if like is None else self.tensor(like).type
        array = np.array(values, np.int64 if kind == self.schema.TensorType.INT64 else np.int32)
        buffer = self.schema.BufferT()
        buffer.data = np.frombuffer(array.tobytes(), np.uint8)
        self._model.buffers.append(buffer)
        return self._add(kind, list(array.shape), len(self._model.buffers) - 1)

    def emit(self, kind: str, *inputs: int, like: int | None = None, rank: int = 0, **options: int) -> int:
        """An operator of one output: of booleans, or of the dtype of another tensor."""
        output = self._output(like, rank)
        self.emit_into(output, kind, *inputs, **options)
        return output

    def emit_into(self, output: int, kind: str, *inputs: int, **options: int) -> None:
        """An operator whose output is there already."""
        schema, operator = self.schema, self.schema.OperatorT()
        operator.opcodeIndex = self._code(getattr(schema.BuiltinOperator, kind))
        operator.inputs, operator.outputs = np.array(inputs, np.int32), np.array([output], np.int32)
        name = f"{''.join(part.title() for part in kind.split('_'))}Options"
        if options:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, name)
            operator.builtinOptions = getattr(schema, f"{name}T")(**options)
        self._operators.append(operator)

    def emit_again(self, operator: Any, *, like: int, rank: int) -> int:
        """An operator with another output."""
        output = self._output(like, rank)
        operator.outputs = np.array([output], np.int32)
        self._operators.append(operator)
        return output

    def sizes(self, index: int, like: int) -> int:
        """The shape of a tensor, in the dtype of another."""
        return self.emit("SHAPE", index, like=like, rank=1, outType=self.tensor(like).type)

    def outside(self, index: int, least: int, end: int) -> int:
        """Whether an integer is not from ``least`` to ``end`` - 1."""
        rank = self.rank(index)
        low, high = self.emit("LESS", index, least, rank=rank), self.emit("GREATER_EQUAL", index, end, rank=rank)
        each = self.emit("LOGICAL_OR", low, high, rank=rank)
        return self.emit("REDUCE_ANY", each, self.constant(list(range(rank))))

    def plus_error(self, index: int, wrong: int) -> int:
        """The same integers; an error of the call where a boolean is true."""
        kind = self.constant(0, like=index)
        # Of one zero only the first is to be had: LiteRT refuses any other.
        zero = self.emit("GATHER", self.constant([0], like=index), self.emit("CAST", wrong, like=kind), like=index)
        return self.emit("ADD", index, zero, like=index, rank=self.rank(index))

    def _output(self, like: int | None, rank: int) -> int:
        """A tensor that an operator gives; how large it is LiteRT finds out."""
        if like is None:
            return self._add(self.schema.TensorType.BOOL, [1] * rank, 0)
        output = self._add(self.tensor(like).type, [1] * rank, 0)
        self.tensor(output).quantization = self.tensor(like).quantization
        return output

    def _add(self, kind: int, shape: list[int], buffer: int) -> int:
        tensor = self.schema.TensorT()
        tensor.type, tensor.shape, tensor.buffer = kind, np.array(shape, np.int32), buffer
        tensor.name = f"checks/{len(self._graph.tensors)}"
        tensor.hasRank = True
        self._graph.tensors.append(tensor)
        return len(self._graph.tensors) - 1

    def _kind_of(self, operator: Any) -> int:
        code = self._model.operatorCodes[operator.opcodeIndex]
        return _kind(code.builtinCode, code.deprecatedBuiltinCode)

    def _code(self, kind: int) -> int:
        codes = self._model.operatorCodes
        for place, code in enumerate(codes):
            if _kind(code.builtinCode, code.deprecatedBuiltinCode) == kind:
                return place
        code = self.schema.OperatorCodeT()
        code.builtinCode, code.deprecatedBuiltinCode = kind, min(kind, 127)
        codes.append(code)
        return len(codes) - 1


def _index(graph: _Graph, operator: Any) -> bool:
    """Of a slice that drops axes: ``x[i]`` and ``x[:, -1]``."""
    options = operator.builtinOptions
    x, begin, _, strides = (int(index) for index in operator.inputs)
    if not options.shrinkAxisMask:
        return False
    axes, places = _dropped(graph, operator)
    known, axis_count = graph.known(begin), graph.sizes_of_shape(x)
    if known is not None and axis_count is not None and all(-axis_count <= known[i] < axis_count for i in axes):
        return False
    kinds = graph.schema.TensorType
    if known is None or graph.tensor(x).type in (kinds.STRING, kinds.UINT32):
        # What LiteRT's gather does not take. Nothing is lost: shapes that follow are not known before either.
        picked = graph.emit("GATHER", begin, graph.constant(list(axes)), like=begin, rank=1)
        sizes = graph.emit("GATHER", graph.sizes(x, begin), graph.constant(list(axes.values())), like=begin, rank=1)
        wrong = graph.outside(picked, graph.emit("NEG", sizes, like=begin, rank=1), sizes)
        graph.keep(operator, 1, graph.plus_error(begin, wrong))
        return True
    # A gather checks its index, and what follows keeps the shapes that are known before the call.
    steps = graph.known(strides)
    if steps is None or any(steps[i] != 1 for i in axes):
        raise LoadError("it drops an axis by a step, which LiteRT does not check")
    output, mask = int(operator.outputs[0]), options.shrinkAxisMask
    options.shrinkAxisMask, options.beginMask, options.endMask = 0, options.beginMask | mask, options.endMask | mask
    source = graph.emit_again(operator, like=x, rank=graph.rank(output) + len(places))
    for i, place in reversed(places.items()):
        index = graph.constant(int(known[i]))
        if known[i] < 0:
            size = graph.emit("GATHER", graph.sizes(source, index), graph.constant(place), like=index)
            index = graph.emit("ADD", size, index, like=index)
        if i == next(iter(places)):
            graph.emit_into(output, "GATHER", source, index, axis=place)
        else:
            source = graph.emit("GATHER", source, index, like=x, rank=graph.rank(source) - 1, axis=place)
    return True


def _dropped(graph: _Graph, operator: Any) -> tuple[dict[int, int], dict[int, int]]:
    """By index of a slice that drops an axis: this axis, and where it is in what the others give."""
    options, (x, begin, *_) = operator.builtinOptions, operator.inputs
    count = int(graph.tensor(begin).shape[0])
    used = sum(1 for i in range(count) if not (options.ellipsisMask | options.newAxisMask) >> i & 1)
    axes: dict[int, int] = {}
    places: dict[int, int] = {}
    axis = place = 0
    for i in range(count):
        if options.ellipsisMask >> i & 1:
            axis, place = axis + graph.rank(x) - used, place + graph.rank(x) - used
            continue
        if not options.newAxisMask >> i & 1:
            if options.shrinkAxisMask >> i & 1:
                axes[i], places[i] = axis, place
            axis += 1
        place += 1
    return axes, places


def _lengths(graph: _Graph, operator: Any) -> bool:
    """Of ``reverse_sequence``."""
    x, lengths = (int(index) for index in operator.inputs)
    axis = graph.constant(operator.builtinOptions.seqDim)
    size = graph.emit("GATHER", graph.sizes(x, lengths), axis, like=lengths)
    end = graph.emit("ADD", size, graph.constant(1, like=lengths), like=lengths)
    wrong = graph.outside(lengths, graph.constant(0, like=lengths), end)
    graph.keep(operator, 1, graph.plus_error(lengths, wrong))
    return True


def _order(graph: _Graph, operator: Any) -> bool:
    """Of a transposition: each axis once. What is beyond all axes LiteRT refuses itself."""
    order = int(operator.inputs[1])
    if graph.known(order) is not None:
        return False
    count = int(graph.tensor(order).shape[0])
    size, one, zero = (graph.constant(each, like=order) for each in (count, 1, 0))
    axes = graph.emit("FLOOR_MOD", order, size, like=order, rank=1)
    each = graph.emit("ONE_HOT", axes, graph.constant(count), one, zero, like=order, rank=2, axis=-1)
    first = graph.constant([0])
    least = graph.emit("REDUCE_MIN", graph.emit("REDUCE_MAX", each, first, like=order, rank=1), first, like=order)
    graph.keep(operator, 1, graph.plus_error(order, graph.emit("EQUAL", least, zero)))
    return True


def _borders(graph: _Graph, operator: Any) -> bool:
    """Of batches and space: two of them stay below 2**31."""
    borders = int(operator.inputs[2])
    if graph.known(borders) is not None:
        return False
    wrong = graph.outside(borders, graph.constant(0, like=borders), graph.constant(1 << 30, like=borders))
    graph.keep(operator, 2, graph.plus_error(borders, wrong))
    return True


def _remainder(graph: _Graph, operator: Any) -> bool:
    """By -1, which is that by 1: the processor stops at the least integer."""
    divisor, kinds = int(operator.inputs[1]), graph.schema.TensorType
    known = graph.known(divisor)
    if graph.tensor(divisor).type not in (kinds.INT32, kinds.INT64) or (known is not None and -1 not in known):
        return False
    rank = graph.rank(divisor)
    is_minus_one = graph.emit("EQUAL", divisor, graph.constant(-1, like=divisor), rank=rank)
    one = graph.constant(1, like=divisor)
    graph.keep(operator, 1, graph.emit("SELECT_V2", is_minus_one, one, divisor, like=divisor, rank=rank))
    return True


_CHANGES: dict[str, Callable[[_Graph, Any], bool]] = {
    "BATCH_TO_SPACE_ND": _borders,
    "FLOOR_MOD": _remainder,
    "REVERSE_SEQUENCE": _lengths,
    "SPACE_TO_BATCH_ND": _borders,
    "STRIDED_SLICE": _index,
    "TRANSPOSE": _order,
}
