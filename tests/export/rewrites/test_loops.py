"""Loops and branches that are built again: recurrent layers in TFLite at any batch size, functions kept whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from modelyard.artifact import SignatureFunction, TensorSpec
from modelyard.export import trace
from modelyard.export.formats import export_tflite

RNG = np.random.default_rng(0)
LAYERS = keras.layers


def recurrent() -> Any:
    """Several kinds over one sequence of any length, and one over images."""
    words = keras.Input((None,), dtype="int32", name="words")
    images = keras.Input((3, 4, 4, 2), name="images")
    masked = LAYERS.Embedding(6, 4, mask_zero=True)(words)
    sequence, *states = LAYERS.LSTM(3, return_sequences=True, return_state=True)(masked)
    outputs = {
        "sequence": sequence,
        "state": states[1],
        "both": LAYERS.Bidirectional(LAYERS.GRU(2))(masked),
        "backwards": LAYERS.SimpleRNN(3, go_backwards=True)(sequence, initial_state=states[:1]),
        "images": LAYERS.ConvLSTM2D(2, 3, padding="same")(images),
    }
    return keras.Model([words, images], outputs)


@tf.function(experimental_attributes={"_noinline": True})
def kept_whole(x: Any) -> Any:
    return x * 2.0 + tf.reduce_sum(x)


def appended(x: Any) -> Any:
    rows = tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=[None, 2])
    _, rows = tf.while_loop(
        lambda i, _: i < 3, lambda i, rows: (i + 1, rows.write(i, x + tf.cast(i, tf.float32))), [0, rows]
    )
    return tf.transpose(rows.stack(), [1, 0, 2])


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "appended": appended,
    "branch": lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: kept_whole(x), lambda: -kept_whole(x)),
    "running": lambda x: tf.scan(lambda a, b: tf.tanh(a + b), tf.transpose(x), tf.zeros_like(x[:, 0]))[-1],
}


def answers(source: Any, folder: Path, *batches: tuple[Any, ...]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What the file and TensorFlow say of each batch."""
    export_tflite(source, folder)
    runner = Interpreter(str(folder / "model.tflite")).get_signature_runner("f")
    function = source.graphs["f"]
    names = [each.name for each in function.input_signature]
    return [
        (runner(**dict(zip(names, batch, strict=True))), {k: v.numpy() for k, v in function(*batch).items()})
        for batch in batches
    ]


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5)


def test_recurrent_layers_in_tflite_at_any_batch_and_length(tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    model = recurrent()
    specs = (
        TensorSpec(name="words", dtype="int32", shape=(-1, -1)),
        TensorSpec(name="images", dtype="float32", shape=(-1, 3, 4, 4, 2)),
    )
    source = trace(model, {"f": SignatureFunction(inputs=specs, function=lambda **inputs: model(inputs))})
    words = RNG.integers(1, 6, (5, 7), np.int32)
    words[0, 4:] = words[1, 1:] = 0
    images = RNG.normal(size=(5, 3, 4, 4, 2)).astype(np.float32)
    for found, expected in answers(
        source, tmp_path, (words, images), (words[:1], images[:1]), (words[:2, :3], images[:2])
    ):
        same(found, expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_loops_and_branches_of_functions(name: str, tmp_path: Path) -> None:
    spec = TensorSpec(name="x", dtype="float32", shape=(-1, 2))
    source = trace(tf.Module(), {"f": SignatureFunction(inputs=(spec,), function=lambda x: {"y": FUNCTIONS[name](x)})})
    x = RNG.normal(size=(4, 2)).astype(np.float32)
    for found, expected in answers(source, tmp_path, (x,), (-x,), (x[:1],)):
        same(found, expected)
