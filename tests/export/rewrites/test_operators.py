"""What converters lack or break, written in what they have: both formats compute what TensorFlow computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from modelyard.artifact import SignatureFunction, TensorSpec
from modelyard.errors import ConversionError
from modelyard.export import trace
from modelyard.export.formats import export_onnx, export_tflite

RNG = np.random.default_rng(0)
ROWS = 5


def floats(*shape: int) -> Any:
    return RNG.normal(size=(ROWS, *shape)).astype(np.float32)


def whole(low: int, high: int, *shape: int, dtype: str = "int32") -> Any:
    return RNG.integers(low, high, (ROWS, *shape)).astype(dtype)


def definite() -> Any:
    squares = floats(3, 3)
    return (squares @ squares.transpose(0, 2, 1) + 3 * np.eye(3)).astype(np.float32)


BOXES = np.abs(floats(8, 4))
BOXES[..., 2:] += BOXES[..., :2]
INPUTS: dict[str, Any] = {
    "x": floats(6), "m": definite(), "i": whole(-50, 50, 3), "k": whole(-1, 4),
    "small": whole(-128, 128, 3, dtype="int8"), "long": whole(-(10**12), 10**12, 3, dtype="int64"),
    "wide": np.array([2**31, 7, 2**31 + 9, -(2**40), 2**32 - 1, 2**53 + 1]) + whole(0, 5, 6, dtype="int64"),
    "d": floats(3).astype(np.float64), "wave": floats(24),
    "image": RNG.random((ROWS, 6, 7, 3)).astype(np.float32), "volume": floats(4, 5, 4, 2),
    "boxes": BOXES, "scores": RNG.random((ROWS, 8, 2)).astype(np.float32),
}  # fmt: skip


def upsampled(image: Any) -> Any:
    """What autoencoders and generators end with: Keras makes UpSampling2D of tf.repeat."""
    for filters in (4, 3):
        image = keras.layers.UpSampling2D()(image)
        image = tf.nn.conv2d(image, tf.fill([3, 3, image.shape[-1], filters], 0.1), 1, "SAME")
    return image


def head(found: Any) -> list[Any]:
    """What a detector keeps of its boxes, of which TensorFlow does not know how many there are."""
    corners = tf.abs(found[:, :, tf.newaxis, :4])
    boxes = tf.concat([corners[..., :2], corners[..., :2] + corners[..., 2:]], -1)
    return list(tf.image.combined_non_max_suppression(boxes, tf.sigmoid(found[..., 4:6]), 3, 4, 0.5, 0.3))


def greedy(scores: Any, lengths: Any) -> list[Any]:
    """A line of text, of scores for each step, batch and symbol."""
    scores = tf.repeat(scores, 2, 0)
    merged, score = tf.nn.ctc_greedy_decoder(scores, lengths, blank_index=0)
    paths, _ = tf.nn.ctc_greedy_decoder(scores, lengths, merge_repeated=False)
    return [tf.sparse.to_dense(merged[0], -1), tf.sparse.to_dense(paths[0], -1), score]


NUMBERS = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(tf.constant([3, 0, -1, 9], tf.int64), tf.constant([0.5, 1.5, 2.5, 3.5])), -1.0
)
WEIGHTS = tf.Variable(RNG.normal(size=6).astype(np.float32))
#: By name, what takes inputs by their names and gives a tensor or several.
CASES: dict[str, Callable[..., Any]] = {
    "angle": lambda x: [tf.atan2(x, 1.5), tf.atan2(-0.5, x[:, :1])],
    "arccosine": lambda x: tf.acos(tf.tanh(x)),
    "bincount": lambda i: tf.math.bincount(i % 5, minlength=5, maxlength=5, axis=-1),
    "bitwise": lambda i: tf.bitwise.bitwise_and(i, 7) + tf.bitwise.bitwise_or(i, -9) + tf.bitwise.invert(i),
    "bits_of_int64": lambda long: [
        *(getattr(tf.bitwise, f"bitwise_{name}")(long, long * 12345 - 7) for name in ("and", "or", "xor")),
        tf.bitwise.right_shift(long, 9), tf.bitwise.invert(long),
    ],
    "box_crops": lambda image, boxes: tf.image.crop_and_resize(
        image, boxes[:, 0] * 0.6, tf.range(tf.shape(image)[0]), [3, 4]
    ),
    "cholesky": lambda m: tf.linalg.cholesky(m),
    "boxes_of_each_class": lambda boxes, scores: list(
        tf.image.combined_non_max_suppression(tf.stack([boxes, boxes * 1.1], 2), scores, 3, 4, 0.5, 0.3)
    ),
    "choice_of_three": lambda x, k: tf.switch_case(
        tf.maximum(k[0], 0) % 3, [lambda: x * WEIGHTS, lambda: tf.nn.relu(x), lambda: x - tf.reduce_sum(x)]
    ),
    "boxes_of_a_head": lambda volume: head(tf.reshape(volume, [tf.shape(volume)[0], -1, 8])),
    "colours": lambda image: [tf.image.adjust_saturation(image, 1.5), tf.image.adjust_hue(image, 0.1)],
    "complex_product": lambda x: tf.math.imag(tf.complex(x, x + 1) * tf.math.conj(tf.complex(x, x * 2))),
    "contrast": lambda image: tf.image.adjust_contrast(image, 1.5),
    "cosine_transform": lambda x: tf.signal.dct(x, norm="ortho"),
    "cross": lambda m: tf.linalg.cross(m[:, 0], m[:, 1]),
    "cumulative_logsumexp": lambda x: [
        tf.math.cumulative_logsumexp(x, 1, reverse=True), tf.math.cumulative_logsumexp(x, 1, exclusive=True),
        tf.math.cumulative_logsumexp(tf.where(x > 0, -math.inf, x), 1),
    ],
    "cumulative_product": lambda x: tf.math.cumprod(x, 1, exclusive=True, reverse=True) + tf.math.cumprod(x, 1),
    "determinant": lambda m: list(tf.linalg.slogdet(m)),
    "diagonals": lambda m: [
        tf.linalg.diag(m[:, 0]), tf.linalg.diag_part(m), tf.linalg.det(m),
        tf.linalg.set_diag(m[:, :, :2], m[:, 0, :2]), tf.linalg.diag_part(m, k=1), tf.linalg.diag_part(m[:, :2], k=-1),
    ],
    "convolved_double": lambda d: tf.nn.conv2d(d[:, :, None, None], tf.ones([2, 1, 1, 2], tf.float64), 1, "VALID"),
    "division_by_zero": lambda x: [
        tf.math.xdivy(tf.nn.relu(x), tf.nn.relu(x)), tf.math.floordiv(x, tf.nn.relu(x)),
    ],
    "double": lambda d: tf.exp(d) @ tf.ones([3, 2], tf.float64),
    "dot_product": lambda m: tf.einsum("bij,bij->b", m, m + 1.0),
    "dot_and_outer_product": lambda m: [
        tf.einsum("bij,bij->b", m, m), tf.einsum("bij,bik->bijk", tf.tensordot(m, m[0], 1), m),
    ],
    "drawn": lambda x: [
        x @ tf.random.stateless_normal([6, 2], [1, 2]),
        tf.gather(x, tf.random.experimental.stateless_shuffle([0, 1, 2], [3, 4]), axis=1),
    ],
    "dilated_of_any_size": lambda image, k: [
        tf.nn.conv2d(image[:, : k[0] + 4], tf.ones([2, 3, 3, 2]), 1, "SAME", dilations=[3, 2]),
        tf.nn.depthwise_conv2d(image[:, : k[0] + 4], tf.ones([3, 4, 3, 1]), [1, 1, 1, 1], "SAME", dilations=[2, 2]),
    ],
    "ensured": lambda image: tf.ensure_shape(tf.nn.relu(image), [None, 6, 7, 3]),
    "fourier": lambda wave: tf.abs(tf.signal.fft(tf.cast(wave, tf.complex64))),
    "fourier_2d": lambda volume: tf.math.real(tf.signal.rfft2d(volume[..., 0])),
    "fourier_of_any_length": lambda wave, k: [
        tf.math.imag(tf.signal.fft(tf.cast(wave[:, : 9 + k[0]], tf.complex64))),
        tf.math.imag(tf.signal.ifft(tf.cast(wave[:, : 9 + k[0]], tf.complex64))),
        tf.math.imag(tf.signal.rfft(wave[:, : 9 + k[0]])),
        tf.signal.irfft(tf.signal.rfft(wave[:, : 9 + k[0]])[:, 1:], [11 + k[0]]),
        tf.math.imag(tf.signal.fftshift(tf.signal.fft(tf.cast(wave, tf.complex64)))),
    ],
    "gathered_from_the_end": lambda m, k: tf.gather(m[:, 0], tf.maximum(k, 0)[:, None] % 3, axis=-1, batch_dims=1),
    "greedy_paths": lambda volume, k: greedy(tf.transpose(volume[:, :, :, 0, 0], [1, 0, 2]), 5 + k),
    "in_top": lambda x, k: tf.math.in_top_k(tf.maximum(k, 0), x, 2),
    "infinite": lambda x: [tf.math.is_inf(1.0 / tf.maximum(x, 0.0)), tf.where(x > 0, x, -math.inf)],
    "inverse": lambda m: tf.linalg.inv(m),
    "inverse_fourier": lambda wave: tf.signal.irfft(tf.signal.rfft(wave, [32]) * tf.complex(0.5, 1.0), [32]),
    "log1p": lambda x: tf.math.log1p(tf.abs(x) * 1e-4) + tf.math.expm1(x * 1e-4),
    "logarithm": lambda x: [
        tf.math.xlog1py(tf.nn.relu(x), tf.abs(x)), tf.math.xlogy(tf.nn.relu(x), tf.nn.relu(x)),
    ],
    "lengths": lambda x: [tf.nn.l2_loss(x), tf.nn.l2_loss(x[:, :1])],
    "least_by_keras": lambda x: [
        keras.ops.argmin(x, 1), keras.ops.argmin(x * [0.0, -1.0, 0.0, 1.0, 0.0, 0.0], -1, keepdims=True),
        keras.ops.signbit(tf.round(x)),
    ],
    "looked_up": lambda k: NUMBERS.lookup(tf.cast(k, tf.int64)),
    "matrix_of_integers": lambda i: tf.matmul(i, tf.constant([[1, 2], [3, 4], [5, 6]])),
    "narrow": lambda small: [small + small, small // 7, small % 7, tf.reduce_max(small, 1), small > 3],
    "new_axes": lambda volume: volume[:, :, 0, None, 1:, None],
    "one_hot": lambda k: [tf.one_hot(k, 3), tf.one_hot(k, 3, on_value=5, off_value=-1, axis=0)],
    "patches": lambda image: tf.image.extract_patches(image, [1, 3, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], "SAME"),
    "pooled_volume": lambda volume: [
        tf.nn.max_pool3d(volume, 2, 2, "VALID"), tf.nn.avg_pool3d(volume, 3, 2, "SAME"),
    ],
    "places_of_int64": lambda long: [
        tf.argmax(long, 1), tf.argmin(tf.concat([long, long], 1), -1, tf.int32), tf.split(long, 3, -1)[1],
        tf.unstack(long, axis=1)[2],
    ],
    "large": lambda wide: [
        tf.maximum(wide, 50), tf.clip_by_value(wide, -(2**33), 2**34), tf.sign(wide), tf.reduce_min(wide, 1),
        tf.reduce_min(tf.boolean_mask(wide, wide > 2**60)), tf.reduce_max(wide[: tf.shape(wide)[0]], 0),
        tf.reduce_max(tf.cast(wide, tf.uint32), 1, keepdims=True), tf.reduce_max(tf.reshape(wide, [-1, 2, 3]), [0, 2]),
    ],
    "quotient": lambda long: [
        long // 7, long // -1000, tf.abs(long), tf.truncatediv(long, 7),
        tf.truncatediv(tf.constant(-1000, tf.int64), long),
    ],
    "resize_bicubic": lambda image: tf.image.resize(image, [9, 5], "bicubic"),
    "probability": lambda x: [
        tf.math.lgamma(x * 3), tf.math.digamma(x * 3), tf.math.erfinv(tf.tanh(x)), tf.math.ndtri(tf.sigmoid(x * 3)),
        tf.math.special.bessel_i0e(x * 30), tf.math.special.bessel_i1e(x * 30), tf.math.erfc(x * 2),
    ],
    "resize_area": lambda image: tf.image.resize(image, [3, 5], "area"),
    "resize_antialias": lambda image: tf.image.resize(image, [4, 4], "bilinear", antialias=True),
    "resize_bilinear": lambda image: [tf.image.resize(image, [9, 9]), tf.image.resize(image, [9, 9], "nearest")],
    "resize_lanczos": lambda image: tf.image.resize(image, [9, 5], "lanczos3"),
    "turned_by_keras": lambda m: keras.ops.cross(m, np.array([1.0, 2.0, 3.0], np.float32)),
    "updated_by_keras": lambda m, k: [
        keras.ops.slice_update(m, [0, 1, 2], m[:, :2, :1] * 3), keras.ops.slice_update(m, [0, k[0], 0], m[:, :2] * 5),
    ],
    "upsampled": lambda image: upsampled(image[:, :, :, :2]),
    "upsampled_of_any_size": lambda image, k: upsampled(image[:, : k[0] + 4]),
    "vectorized": lambda x: tf.vectorized_map(lambda row: tf.linalg.matvec(tf.ones([2, 6]) * WEIGHTS, row), x),
    "reversed_columns": lambda image, k: tf.reverse_sequence(image, k + 1, seq_axis=2, batch_axis=0),
    "roll": lambda x: tf.roll(x, [1, -2], [0, 1]),
    "rounds_towards_zero": lambda i: tf.math.mod(i, 7) + tf.truncatemod(i, 7),
    "scanned": lambda x: tf.scan(lambda a, b: tf.tanh(a + b), tf.transpose(x))[-1],
    "scatter": lambda x, k: [
        tf.scatter_nd(tf.maximum(k, 0)[:, None], x, [4, 6]), tf.tensor_scatter_nd_sub(x, [[0], [0]], tf.ones([2, 6])),
    ],
    "searched": lambda x: [tf.searchsorted(tf.sort(x), x * 0.5), tf.searchsorted(tf.sort(x), x, side="right")],
    "segments": lambda x, k: [
        tf.math.unsorted_segment_sum(x, k, 4), tf.math.unsorted_segment_prod(x, k, 4),
        tf.math.segment_mean(x, tf.range(tf.shape(x)[0]) // 2),
    ],
    "shifted": lambda small: [
        tf.bitwise.right_shift(tf.cast(small, dtype), tf.cast(2, dtype))
        for dtype in (tf.int8, tf.int32)
    ],
    "solved": lambda m: [tf.linalg.solve(m, m[:, :, :1]), tf.linalg.triangular_solve(m, m[:, :, :1])],
    "singular": lambda m: [tf.linalg.det(m * 0.0), *tf.linalg.slogdet(m[:, :2, :2] * [0.0, 1.0])],
    "zero_length": lambda x: [
        keras.layers.UnitNormalization()(x * [[0.0]]), tf.math.rsqrt(tf.nn.relu(x)),
        keras.losses.cosine_similarity(x * 0.0, x),
    ],
    "split_of_any_size": lambda wave, k: [
        *tf.split(wave[:, : 9 + k[0]], [1, -1, 2], 1), tf.split(tf.roll(wave, 1, 1), [-1, 20], -1)[0],
    ],
    "softmax_of_columns": lambda image: tf.nn.softmax(image, 2)[:, 1:, -4:, -2],
    "softplus": lambda x: [tf.nn.softplus(x * 200), tf.math.log_sigmoid(x * 200), tf.asinh(x * 1e30)],
    "suppressed": lambda boxes, scores: [
        tf.image.non_max_suppression(boxes[0], scores[0, :, 0], 6, 0.2, 0.4),
        tf.image.non_max_suppression_with_scores(boxes[0], scores[0, :, 1], 6, 0.2, 0.4)[1],
    ],
    "trace_by_keras": lambda m: keras.ops.trace(m, axis1=1, axis2=2),
    "transposed_dilated": lambda image: keras.ops.conv_transpose(
        image, tf.ones([2, 2, 2, 3]), strides=1, padding="valid", dilation_rate=2
    ),
    "volume_dilated": lambda volume: keras.ops.conv(volume, tf.ones([2, 2, 2, 2, 1]), dilation_rate=2),
}  # fmt: skip
#: Sums of many products, whose order is not TensorFlow's.
TOLERANCE = {
    "fourier": 1e-4,
    "fourier_2d": 1e-4,
    "probability": 1e-4,
    "fourier_of_any_length": 1e-4,
    "inverse_fourier": 1e-4,
    "volume_dilated": 1e-4,
    "inverse": 1e-4,
}
Runs = Mapping[int, Mapping[str, Any]]


def names_of(case: Callable[..., Any]) -> tuple[str, ...]:
    return case.__code__.co_varnames[: case.__code__.co_argcount]


def computing(names: tuple[str, ...]) -> Callable[..., dict[str, Any]]:
    """A function of what some cases take, which computes them all."""

    def compute(**tensors: Any) -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        for name in names:
            found = CASES[name](*(tensors[each] for each in names_of(CASES[name])))
            parts = list(found) if isinstance(found, list | tuple) else [found]
            outputs |= {f"{name}_{index}": part for index, part in enumerate(parts)}
        return outputs

    return compute


#: By signature: tf2onnx takes four times as long for a graph that is twice as large.
GROUPS = {f"f{number}": tuple(CASES)[number::16] for number in range(16)}


def inputs_of(group: str, rows: int) -> dict[str, Any]:
    taken = {each for name in GROUPS[group] for each in names_of(CASES[name])}
    return {name: array[:rows] for name, array in INPUTS.items() if name in taken}


@pytest.fixture(scope="module")
def source() -> Any:
    signatures = {}
    for group, names in GROUPS.items():
        specs = tuple(
            TensorSpec(name=name, dtype=str(a.dtype), shape=(-1, *a.shape[1:]))
            for name, a in inputs_of(group, 1).items()
        )
        signatures[group] = SignatureFunction(inputs=specs, function=computing(names))
    return trace(tf.Module(), signatures)


def of_all_groups(answer: Callable[[str, dict[str, Any]], Mapping[str, Any]]) -> Runs:
    return {
        rows: {name: value for group in GROUPS for name, value in answer(group, inputs_of(group, rows)).items()}
        for rows in (1, ROWS)
    }


@pytest.fixture(scope="module")
def expected(source: Any) -> Runs:
    def answer(group: str, inputs: dict[str, Any]) -> Mapping[str, Any]:
        return {name: value.numpy() for name, value in source.graphs[group](*inputs.values()).items()}

    return of_all_groups(answer)


@pytest.fixture(scope="module")
def found(source: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Runs]:
    """What a format answers; converted once, in whatever order tests run."""
    return cache(lambda kind: answers_of(kind, source, tmp_path_factory.mktemp(kind)))


def answers_of(kind: str, source: Any, folder: Path) -> Runs:
    if kind == "onnx":
        export_onnx(source, folder, simplify=False)
        sessions = {
            group: onnxruntime.InferenceSession(
                str(folder / "onnx" / f"{group}.onnx"), providers=["CPUExecutionProvider"]
            )
            for group in GROUPS
        }

        def answer(group: str, inputs: dict[str, Any]) -> Mapping[str, Any]:
            names = [each.name for each in sessions[group].get_outputs()]
            return dict(zip(names, sessions[group].run(None, inputs), strict=True))

        return of_all_groups(answer)
    export_tflite(source, folder)
    interpreter = Interpreter(str(folder / "model.tflite"))

    def run(group: str, inputs: dict[str, Any]) -> Mapping[str, Any]:
        runner = interpreter.get_signature_runner(group)
        # Doubles are floats there.
        kinds = {name: details["dtype"] for name, details in runner.get_input_details().items()}
        return dict(runner(**{name: array.astype(kinds[name]) for name, array in inputs.items()}))

    return of_all_groups(run)


@pytest.mark.parametrize("kind", ["onnx", "tflite"])
@pytest.mark.parametrize("name", CASES)
def test_an_operator(name: str, kind: str, expected: Runs, found: Callable[[str], Runs]) -> None:
    for rows, outputs in expected.items():
        own = {key: value for key, value in outputs.items() if key.rpartition("_")[0] == name}
        assert own
        for key, value in own.items():
            answer = np.asarray(found(kind)[rows][key])
            # LiteRT has no doubles.
            floats_only = value.dtype == np.float64 and answer.dtype == np.float32
            assert floats_only or answer.dtype == value.dtype
            np.testing.assert_allclose(answer, value, rtol=1e-5, atol=TOLERANCE.get(name, 1e-5))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: tf.linalg.qr(x)[1], r"the operator Qr \(Qr\) has no counterpart in (ONNX|TFLite)"),
        (
            lambda x: tf.linalg.inv(tf.pad(x, [[0, 0], [0, 40], [0, 40]])),
            r"MatrixInverse \(\S+\) of matrices of 43 rows",
        ),
    ],
)
def test_what_has_no_counterpart_is_named(function: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    spec = TensorSpec(name="x", dtype="float32", shape=(-1, 3, 3))
    traced = trace(tf.Module(), {"f": SignatureFunction(inputs=(spec,), function=lambda x: {"y": function(x)})})
    with pytest.raises(ConversionError, match=f"Format onnx.*{message}"):
        export_onnx(traced, tmp_path)
    with pytest.raises(ConversionError, match=f"Format tflite.*{message}"):
        export_tflite(traced, tmp_path)


def test_several_diagonals_are_none_of_tflite(tmp_path: Path) -> None:
    spec = TensorSpec(name="x", dtype="float32", shape=(-1, 3, 3))

    def diagonals(x: Any) -> dict[str, Any]:
        return {"part": tf.linalg.diag_part(x, k=(0, 1)), "whole": tf.linalg.diag(x[:, 0], k=-1, padding_value=2.0)}

    traced = trace(tf.Module(), {"f": SignatureFunction(inputs=(spec,), function=diagonals)})
    export_onnx(traced, tmp_path)
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "f.onnx"))
    for x in (floats(3, 3), floats(3, 3)[:1]):
        for name, value in diagonals(x).items():
            np.testing.assert_array_equal(session.run([name], {"x": x})[0], value)
    with pytest.raises(ConversionError, match=r"MatrixDiagPartV3 \(\S+\) of several diagonals"):
        export_tflite(traced, tmp_path)
