from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.saved_models import save_counter, save_tf1_half_plus_two

WriteOnnx = Callable[..., Path]

_KINDS = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bfloat16": TensorProto.BFLOAT16,
    "string": TensorProto.STRING,
}


@pytest.fixture
def write_onnx(tmp_path: Path) -> WriteOnnx:
    """Writes a graph; inputs and outputs are ``name: (dtype, shape)``."""

    def write(
        name: str,
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, tuple[str, Sequence[str | int] | None]],
        outputs: Mapping[str, tuple[str, Sequence[str | int] | None]],
        constants: Mapping[str, np.ndarray] | None = None,
    ) -> Path:
        graph = helper.make_graph(
            list(nodes),
            "test",
            [helper.make_tensor_value_info(key, _KINDS[dtype], shape) for key, (dtype, shape) in inputs.items()],
            [helper.make_tensor_value_info(key, _KINDS[dtype], shape) for key, (dtype, shape) in outputs.items()],
            [numpy_helper.from_array(value, key) for key, value in (constants or {}).items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return write


@pytest.fixture
def scores_onnx(write_onnx: WriteOnnx) -> Path:
    """``image`` float32 [batch, 2, 3] to ``class_id``, ``label`` and ``scores``."""
    return write_onnx(
        "scores",
        [
            helper.make_node("Flatten", ["image"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weights"], ["scores"]),
            helper.make_node("ArgMax", ["scores"], ["class_id"], axis=1, keepdims=0),
            helper.make_node("Gather", ["labels", "class_id"], ["label"]),
        ],
        {"image": ("float32", ["batch", 2, 3])},
        {"class_id": ("int64", ["batch"]), "label": ("string", ["batch"]), "scores": ("float32", ["batch", 4])},
        {
            "weights": np.eye(6, 4, dtype=np.float32),
            "labels": np.array(["shirt", "bag", "sur\u00eatre", "boot"], dtype=object),
        },
    )


@pytest.fixture
def fill_onnx(write_onnx: WriteOnnx) -> Path:
    """``shape`` int64 [3] to ``y``, ones of that shape: more than there is memory for, where one asks for it."""
    return write_onnx(
        "fill",
        [helper.make_node("Expand", ["one", "shape"], ["y"])],
        {"one": ("float32", [1]), "shape": ("int64", [3])},
        {"y": ("float32", ["a", "b", "c"])},
    )


@pytest.fixture
def sum_onnx(write_onnx: WriteOnnx) -> Path:
    """``a`` and ``b``, float32 of any length each, to their sum: lengths that differ fail inside."""
    return write_onnx(
        "sum",
        [helper.make_node("Add", ["a", "b"], ["y"])],
        {"a": ("float32", ["n"]), "b": ("float32", ["m"])},
        {"y": ("float32", ["k"])},
    )


@pytest.fixture
def images() -> np.ndarray:
    """Two examples for :func:`scores_onnx`: the second pixel of the first is its largest, the third of the second."""
    return np.array([[[0, 2, 1], [0, 5, 5]], [[0, 0.5, 1], [0.5, 9, 9]]], dtype=np.float32)


@pytest.fixture(scope="session")
def keras_images() -> np.ndarray:
    return np.random.default_rng(7).random((16, 28, 28, 1), dtype=np.float32)


@pytest.fixture(scope="session")
def keras_saved_model(session_dir: Path) -> Path:
    """The convolutional network of the task ``fashion``, with weights from a seed, as Keras exports it."""
    import keras

    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    path = session_dir / "keras"
    model.export(str(path), verbose=False)
    return path


@pytest.fixture(scope="session")
def signatures_saved_model(session_dir: Path) -> Path:
    """A TF2 model with signatures of many kinds."""
    import tensorflow as tf

    floats = tf.TensorSpec([None], tf.float32, name="x")
    integers = tf.TensorSpec([None], tf.int64, name="count")

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = tf.Variable(0.5)
            self.table = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2], tf.int64), tf.constant(["one", "two"])), "none"
            )

        @tf.function(input_signature=[floats])
        def predict(self, x):
            return {"y": self.slope * x + 2}

        @tf.function(input_signature=[floats, integers])
        def two(self, x, count):
            return {"y": self.slope * x + 2, "next": count + 1, "echo": x}

        @tf.function(input_signature=[floats])
        def same_names(self, x):
            return {"x": -x}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="id")])
        def label(self, id):
            return {"label": self.table.lookup(id)}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
        def text(self, text):
            return {"length": tf.strings.length(text), "upper": tf.strings.upper(text)}

        # Both answer with numbers that do not come from the changed variable: only the change itself gives them away.
        @tf.function(input_signature=[floats])
        def adds(self, x):
            y = self.slope * x
            self.slope.assign_add(0.0)
            return {"y": y}

        @tf.function(input_signature=[floats])
        def assigns(self, x):
            self.slope.assign(0.5)
            return {"y": x}

        @tf.function(input_signature=[floats])
        def constant(self, x):
            return {"y": x, "one": tf.constant([1.0])}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float64, name="x")])
        def double(self, x):
            return {"y": x / 3}

        @tf.function(input_signature=[tf.TensorSpec(None, tf.float32, name="x")])
        def unknown_rank(self, x):
            return {"y": x * 2}

        @tf.function(input_signature=[floats])
        def unknown_op(self, x):
            return {"y": tf.math.betainc(x, x, x)}

    model = Model()
    names = (
        "two", "same_names", "label", "text", "adds", "assigns", "constant", "double", "unknown_rank", "unknown_op",
    )  # fmt: skip
    path = session_dir / "signatures"
    signatures = {"serving_default": model.predict, **{name: getattr(model, name) for name in names}}
    tf.saved_model.save(model, str(path), signatures=signatures)
    return path


@pytest.fixture(scope="session")
def tf1_saved_model(session_dir: Path) -> Path:
    path = session_dir / "tf1"
    save_tf1_half_plus_two(path)
    return path


@pytest.fixture(scope="session")
def counter_saved_model(session_dir: Path) -> Path:
    path = session_dir / "counter"
    save_counter(path)
    return path
