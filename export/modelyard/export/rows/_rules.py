"""How each operation of TensorFlow carries the rows of a batch; what is not here is not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from modelyard.export.rows._layout import LAYOUT_RULES
from modelyard.export.rows._values import (
    Mixed,
    Rule,
    Undecided,
    Value,
    aligned,
    constant,
    marks_of,
    only_first,
    rank,
    rows,
    sizes,
    static_input,
)

#: Each element of the result is computed from those at its place.
_ELEMENTWISE = frozenset(
    """Abs Acos Acosh Add AddN AddV2 AsString Asin Asinh Atan Atan2 Atanh BitwiseAnd BitwiseOr BitwiseXor Bucketize Cast
    Ceil CheckNumerics ClipByValue Complex ComplexAbs Conj Cos Cosh DecodeBase64 Digamma Div DivNoNan Elu EncodeBase64
    EnsureShape Equal Erf Erfc Erfinv Exp Expm1 FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars Floor FloorDiv FloorMod
    Gelu Greater GreaterEqual Identity Igamma Igammac Imag Inv Invert IsFinite IsInf IsNan LeakyRelu LeftShift Less
    LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Ndtri Neg NextAfter
    NotEqual OnesLike Polygamma Pow PreventGradient Real RealDiv Reciprocal
    RegexFullMatch RegexReplace Relu Relu6 RightShift Rint Round Rsqrt SelectV2 Selu Sigmoid Sign Sin Sinh Snapshot
    Softplus Softsign Sqrt Square SquaredDifference StaticRegexFullMatch StaticRegexReplace StopGradient
    StringJoin StringLength StringLower StringStrip StringToHashBucket StringToHashBucketFast
    StringToHashBucketStrong StringToNumber StringUpper Sub Substr Tan Tanh TruncateDiv TruncateMod Xdivy Xlog1py Xlogy
    ZerosLike Zeta""".split()
)
#: By operation, how many of the last dimensions of the first input belong together; the others are carried, and all
#: further inputs must be constants.
_INNER = {
    "Conv1D": 2, "Conv2D": 3, "Conv3D": 4, "DepthwiseConv2dNative": 3, "Dilation2D": 3, "AvgPool": 3, "AvgPool3D": 4,
    "MaxPool": 3, "MaxPool3D": 4, "MaxPoolV2": 3, "LRN": 3, "DepthToSpace": 3, "SpaceToDepth": 3, "ResizeArea": 3,
    "ResizeBicubic": 3, "ResizeBilinear": 3, "ResizeNearestNeighbor": 3, "ExtractImagePatches": 3,
    "FusedBatchNorm": 3, "FusedBatchNormV2": 3, "FusedBatchNormV3": 3, "AdjustContrastv2": 3, "AdjustHue": 3,
    "AdjustSaturation": 3, "Softmax": 1, "LogSoftmax": 1, "TopKV2": 1, "TopK": 1, "NthElement": 1, "FFT": 1, "IFFT": 1,
    "RFFT": 1, "IRFFT": 1, "FFT2D": 2, "RFFT2D": 2, "IRFFT2D": 2, "Cholesky": 2, "MatrixInverse": 2,
    "MatrixDeterminant": 2, "LogMatrixDeterminant": 2, "MatrixBandPart": 2, "MatrixDiagPartV3": 2, "MatrixDiagV3": 1,
    "Qr": 2, "SelfAdjointEigV2": 2, "Svd": 2, "DenseBincount": 1, "BiasAdd": 1, "BiasAddV1": 1,
    "RGBToHSV": 1, "HSVToRGB": 1, "ScaleAndTranslate": 3,
}  # fmt: skip
#: Those of them that have the batch first, whatever their layout.
_IMAGES = {name for name, inner in _INNER.items() if inner >= 3}
_REDUCTIONS = frozenset("All Any EuclideanNorm Max Mean Min Prod Sum".split())
#: Constants: nothing of the batch goes in.
_SOURCES = frozenset("Const HashTableV2 VarHandleOp MutableHashTableV2 NoOp Assert".split())


def rule_of(name: str) -> Rule | None:
    """The rule for an operation."""
    if name in _ELEMENTWISE:
        return lambda op, values: aligned(values)
    if name in _INNER:
        return _inner
    return _reduction if name in _REDUCTIONS else _RULES.get(name)


def is_source(name: str) -> bool:
    """Whether an operation gives the same whatever is in the batch."""
    return name in _SOURCES


def _inner(op: tf.Operation, values: Sequence[Value]) -> Value:
    value = only_first(values)
    if op.type.startswith("FusedBatchNorm") and op.get_attr("is_training"):
        raise Mixed("normalizes with the mean and variance of the batch")
    inner = _INNER[op.type]
    if op.type == "BiasAdd" and op.get_attr("data_format") == b"NCHW":
        inner = rank(value) - 1
    if op.type in _IMAGES and value.axis != 0:
        raise Undecided("a batch that is not the first dimension")
    if value.axis >= rank(value) - inner:
        raise Mixed("works along the rows")
    return rows(value.axis)


def _reduction(op: tf.Operation, values: Sequence[Value]) -> Value:
    if values[0].kind == "sizes":
        marks = marks_of(values[0])
        return sizes((any(marks),))
    value = only_first(values)
    axes = {axis % rank(value) for axis in static_input(op, 1)}
    if value.axis in axes:
        raise Mixed("reduces over the rows")
    kept = op.get_attr("keep_dims")
    return rows(value.axis if kept else value.axis - sum(axis < value.axis for axis in axes))


def _arg(op: tf.Operation, values: Sequence[Value]) -> Value:
    value = only_first(values)
    axis = static_input(op, 1)[0] % rank(value)
    if axis == value.axis:
        raise Mixed("compares the rows")
    return rows(value.axis - (axis < value.axis))


def _along(op: tf.Operation, values: Sequence[Value]) -> Value:
    """Cumulative sums and the like: along one axis, or several."""
    value = only_first(values)
    if value.axis in {axis % rank(value) for axis in static_input(op, 1)}:
        raise Mixed("goes along the rows")
    return rows(value.axis)


def _gather(op: tf.Operation, values: Sequence[Value]) -> Value:
    params, indices = values[:2]
    batch = op.get_attr("batch_dims")
    axis = 0 if len(values) < 3 else static_input(op, 2)[0]
    if params.kind == "sizes" and indices.kind == "constant":
        marks, found = marks_of(params), static_input(op, 1)
        return sizes(marks[index] for index in found)
    if params.kind == "constant" and indices.kind == "rows" and batch == 0:
        axis = axis if axis >= 0 else axis + rank(params)
        return rows(axis + indices.axis)
    if params.kind == "rows":
        axis %= rank(params)
        if indices.kind == "constant" and batch == 0:
            if axis == params.axis:
                raise Undecided("takes some of the rows")
            return rows(params.axis + (rank(indices) - 1 if axis < params.axis else 0))
        if indices.kind == "rows" and params.axis == indices.axis < batch <= axis:
            return rows(params.axis)
    raise Undecided("looks up rows by numbers")


def _gather_nd(op: tf.Operation, values: Sequence[Value]) -> Value:
    params, indices = values
    if params.kind != "constant" or indices.kind != "rows" or indices.axis == rank(indices) - 1:
        raise Undecided("looks up rows by numbers")
    return rows(indices.axis)


def _one_hot(op: tf.Operation, values: Sequence[Value]) -> Value:
    value = only_first(values)
    axis = op.get_attr("axis")
    return rows(value.axis + (0 <= axis <= value.axis))


def _lookup(op: tf.Operation, values: Sequence[Value]) -> Value:
    return rows(only_first(values, 1).axis)


def _matmul(op: tf.Operation, values: Sequence[Value]) -> Value:
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    flipped = [op.get_attr(name) for name in names]
    highest = max(rank(each) for each in values)
    # The last two dimensions as they are multiplied: of the result, the first one's first and the second one's last.
    places = []
    for index, (value, flip) in enumerate(zip(values, flipped, strict=True)):
        if value.kind != "rows":
            continue
        inner = value.axis - (rank(value) - 2)
        if inner < 0:
            places.append(highest - rank(value) + value.axis)
            continue
        inner = 1 - inner if flip else inner
        if inner != index:
            raise Mixed("sums over the rows")
        places.append(highest - 2 + inner)
    if not places or len(set(places)) > 1:
        raise Undecided("multiplies the rows with each other")
    for value in values:
        at = places[0] - (highest - rank(value))
        fixed = value.dims is not None and value.kind == "constant" and 0 <= at < rank(value) - 2
        if fixed and value.dims is not None and value.dims[at] != 1:
            raise Undecided("a constant with a size for the rows")
    if places[0] >= highest - 2 and sum(each.kind == "rows" for each in values) > 1:
        raise Mixed("multiplies the rows with each other")
    return rows(places[0])


def _einsum(op: tf.Operation, values: Sequence[Value]) -> Value:
    equation = op.get_attr("equation").decode().replace(" ", "")
    left, _, right = equation.partition("->")
    if "." in equation:
        raise Undecided("an equation with an ellipsis")
    terms = left.split(",")
    labels = {term[value.axis] for term, value in zip(terms, values, strict=True) if value.kind == "rows"}
    if len(labels) != 1 or any(each.kind not in ("rows", "constant") for each in values):
        raise Undecided("multiplies the rows with each other")
    (label,) = labels
    if label not in right:
        raise Mixed("sums over the rows")
    if any(label in term for term, value in zip(terms, values, strict=True) if value.kind == "constant"):
        raise Undecided("a constant with a size for the rows")
    return rows(right.index(label))


def _select(op: tf.Operation, values: Sequence[Value]) -> Value:
    if len({rank(each) for each in values}) > 1:
        raise Undecided("chooses between whole rows")
    return aligned(values)


def _transposed_convolution(op: tf.Operation, values: Sequence[Value]) -> Value:
    filters, value = values[1:]
    if filters.kind != "constant" or value.kind != "rows" or value.axis != 0:
        raise Undecided("another input depends on the batch")
    return rows(0)


def _reverse_sequence(op: tf.Operation, values: Sequence[Value]) -> Value:
    value, lengths = values
    batch, sequence = op.get_attr("batch_dim"), op.get_attr("seq_dim")
    if value.kind != "rows" or sequence == value.axis or (lengths.kind == "rows" and batch != value.axis):
        raise Undecided("reverses the rows")
    return rows(value.axis)


def _range(op: tf.Operation, values: Sequence[Value]) -> Value:
    raise Undecided("numbers the rows")


def _reserve(op: tf.Operation, values: Sequence[Value]) -> Value:
    if values[1].kind != "constant":
        raise Undecided("a list of the rows")
    return Value(kind="list")


def _list_of(op: tf.Operation, values: Sequence[Value]) -> Value:
    value = values[0]
    if value.kind == "constant":
        return Value(kind="list", item=constant((value.dims or (None,))[1:] if value.dims else None))
    if value.kind != "rows" or value.axis == 0:
        raise Undecided("a list of the rows")
    return Value(kind="list", item=rows(value.axis - 1, (value.dims or ())[1:]))


def _item(op: tf.Operation, values: Sequence[Value]) -> Value:
    items, index = values[:2]
    if items.kind != "list" or items.item is None or index.kind != "constant":
        raise Undecided("an item of a list by a number")
    return items.item


def _set_item(op: tf.Operation, values: Sequence[Value]) -> Value:
    items, index, value = values[:3]
    if items.kind != "list" or index.kind != "constant" or value.kind not in ("rows", "constant"):
        raise Undecided("an item of a list by a number")
    if items.item is not None and (items.item.kind, items.item.axis) != (value.kind, value.axis):
        raise Undecided("a list of different things")
    return Value(kind="list", item=value)


def _stack(op: tf.Operation, values: Sequence[Value]) -> Value:
    item = values[0].item
    if item is None or item.kind not in ("constant", "rows"):
        raise Undecided("a list that is empty")
    if item.kind == "constant":
        return constant()
    return rows(item.axis + 1, None if item.dims is None else (None, *item.dims))


_RULES: Mapping[str, Rule] = {
    **LAYOUT_RULES,
    "ArgMax": _arg, "ArgMin": _arg, "BatchMatMul": _matmul, "BatchMatMulV2": _matmul, "BatchMatMulV3": _matmul,
    "Conv2DBackpropInput": _transposed_convolution, "Conv3DBackpropInputV2": _transposed_convolution, "Cumprod":
    _along, "Cumsum": _along, "CumulativeLogsumexp": _along, "Einsum": _einsum, "GatherNd": _gather_nd, "GatherV2":
    _gather, "LookupTableFindV2": _lookup, "MatMul": _matmul, "OneHot": _one_hot, "Range": _range, "ResourceGather":
    _gather, "ReverseSequence": _reverse_sequence, "ReverseV2": _along, "Select": _select, "TensorListFromTensor":
    _list_of, "TensorListGetItem": _item, "TensorListReserve": _reserve, "TensorListSetItem": _set_item,
    "TensorListStack": _stack,
}  # fmt: skip
