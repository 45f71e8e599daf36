"""What tf2onnx is kept from: its conversions must not need many times the memory of a model."""

from __future__ import annotations

import subprocess
import sys

#: A chain of layers, so that there are nodes for all of its optimizers.
SCRIPT = """
import contextlib
import resource
import sys

import numpy as np
import tensorflow as tf

from modelyard.export import _tf2onnx

if sys.argv[1] == "without":
    _tf2onnx._new_messages = contextlib.nullcontext

weights = [np.random.default_rng(n).random((1024, 1024), np.float32) for n in range(16)]


@tf.function(input_signature=[tf.TensorSpec([None, 1024], tf.float32, name="x")])
def function(x):
    for weight in weights:
        x = tf.nn.relu(x @ weight)
    return {"y": x}


function.get_concrete_function()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = _tf2onnx.convert_function(function, opset=18)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * 1024 / model.ByteSize())
"""


def test_memory_of_a_conversion() -> None:
    """Measured here: 18 times the weights, and 30 times where tf2onnx refills the messages that it has."""
    ours, plain = (_memory(which) for which in ("with", "without"))
    assert ours < 0.8 * plain


def _memory(which: str) -> float:
    command = [sys.executable, "-c", SCRIPT, which]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)
