"""What OpenVINO answers otherwise than ONNX and TensorFlow, or does not survive, is changed in the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino
import pytest
from openvino import opset15 as ops

from modelyard.artifact.runtimes import lookup_sizes, openvino_core, openvino_settings, prepare_openvino

X = np.arange(1, 25, dtype=np.float32).reshape(4, 6)
F = X[0, :3]
LEAST = -(2**31)


def ints(*values: Any) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


def const(values: Any, dtype: type[np.generic] = np.int64) -> Any:
    return ops.constant(np.array(values, dtype))


def matrix() -> Any:
    return ops.parameter([-1, -1], np.float32)


def vector(dtype: type[np.generic] = np.int32) -> Any:
    return ops.parameter([-1], dtype)


def load(outputs: Sequence[Any], inputs: Sequence[Any]) -> Callable[..., list[npt.NDArray[Any]]]:
    model = openvino.Model([each.output(0) if hasattr(each, "outputs") else each for each in outputs], list(inputs))
    prepare_openvino(model)
    compiled = openvino_core().compile_model(model, "CPU", openvino_settings(bfloat16=False, threads=1))

    def call(*arrays: Any) -> list[npt.NDArray[Any]]:
        # A failure leaves its traces in a request.
        request = compiled.create_infer_request()
        for index, array in enumerate(arrays):
            request.set_input_tensor(index, openvino.Tensor(np.array(array)))
        request.start_async()
        request.wait()
        return [np.array(request.get_output_tensor(place).data) for place in range(len(outputs))]

    return call


def update() -> Any:
    """Of whole numbers along one axis OpenVINO writes wherever it is told."""
    x, index = vector(np.int64), vector()
    return [ops.scatter_update(x, index, const([7]), const(0))], [x, index]


def row() -> Any:
    x, index = matrix(), vector()
    end = ops.add(index, const([1], np.int32))
    return [ops.strided_slice(x, index, end, const([1], np.int32), [0], [0], shrink_axis_mask=[1])], [x, index]


def lengths() -> Any:
    x, index = matrix(), vector()
    found = ops.ctc_greedy_decoder_seq_len(ops.reshape(x, const([1, 4, 6]), False), index, merge_repeated=False)
    return [found.output(1)], [x, index]


def boxes() -> Any:
    x, found = matrix(), ops.parameter([-1, 5], np.float32)
    image = ops.reshape(x, const([1, 1, 4, 6]), False)
    return [ops.roi_pooling(image, found, [2, 2], 1.0, "bilinear")], [x, found]


def quotient(operation: str) -> Callable[[], Any]:
    def build() -> Any:
        x, y = vector(), vector()
        return [getattr(ops, operation)(x, y)], [x, y]

    return build


def number() -> Any:
    """One of a few integers by a computed place: sizes are computed with such."""
    index = vector()
    return [ops.gather(const([5, 7, 9]), ops.add(index, const(0, np.int32)), const(0))], [index]


def padded(mode: str) -> Callable[[], Any]:
    def build() -> Any:
        x, before, after = vector(np.float32), vector(), vector()
        return [ops.pad(x, before, after, mode, const(0, np.float32))], [x, before, after]

    return build


def tiled() -> Any:
    x, times = vector(np.float32), ops.parameter([1], np.int32)
    return [ops.tile(x, times)], [x, times]


def counted() -> Any:
    inputs = [ops.parameter([], np.int32) for _ in range(3)]
    return [ops.range(*inputs, "i32")], inputs


def stepped(operation: str) -> Callable[[], Any]:
    def build() -> Any:
        x, step = vector(np.float32), vector()
        begin, end = const([0], np.int32), const([100], np.int32)
        if operation == "slice":
            return [ops.slice(x, begin, end, step)], [x, step]
        return [ops.strided_slice(x, begin, end, step, [1], [1])], [x, step]

    return build


def box(*values: float) -> npt.NDArray[np.float32]:
    return np.array([values], np.float32)


#: What is built, inputs and their answers, and inputs that are refused.
CHECKED: dict[str, tuple[Callable[[], Any], list[tuple[Any, ...]], list[tuple[Any, ...]]]] = {
    "update": (
        update, [(np.zeros(2, np.int64), ints(1), [0, 7])],
        [(np.zeros(2, np.int64), ints(each)) for each in (2, 100, -1)],
    ),
    "row": (
        row, [(X, ints(3), X[3]), (X, ints(-4), X[0])], [(X, ints(4)), (X, ints(-5)), (X[:0], ints(0))],
    ),
    "lengths": (lengths, [(X, ints(4), [0]), (X, ints(0), [0])], [(X, ints(-1)), (X, ints(-100))]),
    "boxes": (
        boxes,
        [(X, box(0, 0, 0, 1, 1), [[[[1, 6], [19, 24]]]]), (X, box(0, 0, 0, 2, 2), [[[[1, 0], [0, 0]]]])],
        [(X, box(*each)) for each in (
            (1, 0, 0, 1, 1), (-1, 0, 0, 1, 1), (0, np.nan, 0, 1, 1), (0, 0, 0, np.inf, 1), (np.nan, 0, 0, 1, 1),
        )],
    ),
    "quotient": (quotient("divide"), [(ints(7, 8), ints(2, 2), [3, 4])], [(ints(7, 7), ints(2, 0))]),
    "remainder": (quotient("floor_mod"), [(ints(7, -7), ints(2, 2), [1, 1])], [(ints(7, 7), ints(2, 0))]),
    "number": (number, [(ints(2, 0), [9, 5]), (ints(-1), [9])], [(ints(each),) for each in (3, 100_000, -4, -100_000)]),
    "padded": (
        padded("constant"),
        [(F, ints(1), ints(0), [0, 1, 2, 3]), (F, ints(-1), ints(-1), [2]), (F, ints(-3), ints(0), [])],
        [(F, ints(-4), ints(0)), (F, ints(-2), ints(-2)), (F, ints(LEAST), ints(LEAST)), (F, ints(LEAST), ints(9))],
    ),
    "reflected": (padded("reflect"), [(F, ints(1), ints(0), [2, 1, 2, 3])], [(F, ints(LEAST), ints(LEAST))]),
    "tiled": (tiled, [(F, ints(2), [1, 2, 3, 1, 2, 3]), (F, ints(0), [])], [(F, ints(-1)), (F, ints(-100_000))]),
    "counted": (
        counted,
        [
            (np.int32(1), np.int32(6), np.int32(2), [1, 3, 5]), (np.int32(6), np.int32(1), np.int32(-2), [6, 4, 2]),
            (np.int32(0), np.int32(10), np.int32(2**31 - 1), [0]), (np.int32(9), np.int32(0), np.int32(LEAST), [9]),
            (np.int32(0), np.int32(-(10**9)), np.int32(1), []), (np.int32(0), np.int32(10**9), np.int32(-1), []),
        ],
        [(np.int32(0), np.int32(5), np.int32(0)), (np.int32(0), np.int32(0), np.int32(0))],
    ),
    "stepped": (
        stepped("strided_slice"), [(F, ints(2), [1, 3]), (F, ints(-1), [3, 2, 1]), (F, ints(LEAST), [3])],
        [(F, ints(0))],
    ),
    "sliced": (stepped("slice"), [(F, ints(2), [1, 3])], [(F, ints(0))]),
    "rest": (quotient("mod"), [(ints(7, -7), ints(2, 2), [1, -1])], [(ints(7, 7), ints(2, 0))]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKED)
def test_what_is_out_of_range_is_an_error(name: str) -> None:
    build, answered, refused = CHECKED[name]
    call = load(*build())
    for _ in range(2):
        for *arrays, expected in answered:
            np.testing.assert_array_equal(call(*arrays)[0], expected)
        for wrong in refused:
            with pytest.raises(RuntimeError, match="indices"):
                call(*wrong)


def test_what_follows_from_sizes_is_known_still() -> None:
    x = ops.parameter([-1, 3], np.float32)
    rows, columns = (ops.gather(ops.shape_of(x), const([number]), const(0)) for number in (0, 1))
    places = ops.range(const(0), ops.squeeze(columns, const(0)), const(1), "i64")
    table = ops.tile(ops.reshape(places, const([1, -1]), False), ops.concat([rows, const([2])], 0))
    chosen = ops.strided_slice(table, const([0, 0]), ops.concat([rows, columns], 0), const([1, 1]), [1, 1], [1, 0])
    model = openvino.Model([chosen], [x])
    prepare_openvino(model)
    assert str(model.output(0).get_partial_shape()) == "[?,3]"


@pytest.mark.parametrize("operation", ["bitwise_left_shift", "bitwise_right_shift"])
def test_shifts_beyond_the_bits_are_as_in_tensorflow(operation: str) -> None:
    import tensorflow as tf

    x, y = ints(7, 7, 7, -7, -7, 1), ints(-1, 33, 64, 33, 2, 31)
    (found,) = load(*quotient(operation)())(x, y)
    shift = tf.bitwise.left_shift if "left" in operation else tf.bitwise.right_shift
    assert found.tolist() == shift(x, y).numpy().tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
def test_values_keep_their_order_where_equal_ones_are_dropped(dtype: type[np.generic]) -> None:
    x = vector(dtype)
    call = load(ops.unique(x, sorted=False).outputs(), [x])
    for values in ([5, 3, 5, 7, 3, 5], [-5], [2, 2], [9, 1, 8, 2, 7, 3]):
        distinct = list(dict.fromkeys(values))
        found, first, places, counts = call(np.array(values, dtype))
        assert found.tolist() == distinct and found.dtype == dtype
        assert first.tolist() == [values.index(each) for each in distinct]
        assert places.tolist() == [distinct.index(each) for each in values]
        assert counts.tolist() == [values.count(each) for each in distinct]


def test_a_part_as_booleans_is_that_part() -> None:
    x = ops.parameter([2, -1], np.int32)
    parts = ops.split(x, const(0), 2)
    first, second = load([ops.convert(parts.output(place), "boolean") for place in range(2)], [x])(
        ints([1, 0, 2], [0, 3, 0])
    )
    assert first.tolist() == [[True, False, True]]
    assert second.tolist() == [[False, True, False]]


def test_inputs_that_are_looked_up() -> None:
    ids, others, computed, shifted = (vector(kind) for kind in (np.int64, np.int32, np.int32, np.int32))
    table, other = const(np.zeros((7, 3)), np.float32), const(np.zeros((2, 5)), np.float32)
    outputs = [
        ops.gather(table, ops.convert(ops.reshape(ids, const([-1, 1]), False), "i32"), const(0)),
        ops.gather(other, ids, const(-1)),
        ops.gather(other, others, const(0)),
        ops.gather(ops.broadcast(const(0.0, np.float32), computed), computed, const(0)),
        ops.gather(table, ops.add(shifted, const([1], np.int32)), const(0)),
    ]
    model = openvino.Model([each.output(0) for each in outputs], [shifted, ids, computed, others])
    assert lookup_sizes(model) == {1: 5, 3: 2}
