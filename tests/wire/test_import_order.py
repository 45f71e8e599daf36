"""Our messages and TensorFlow's live in one process, whichever comes first."""

from __future__ import annotations

import subprocess
import sys

import pytest

OURS = "from modelyard.wire import serving_pb2, array_to_tensor, tensor_to_array"
THEIRS = """
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, get_model_status_pb2, prediction_service_pb2_grpc
"""
EXCHANGE = """
import numpy as np
array = np.arange(6, dtype=np.float32).reshape(2, 3)
ours = serving_pb2.PredictRequest()
ours.model_spec.name = "m"
ours.model_spec.version.value = 3
ours.inputs["x"].CopyFrom(array_to_tensor(array))
ours.inputs["s"].CopyFrom(array_to_tensor(np.array([b"a"], dtype=object)))
theirs = predict_pb2.PredictRequest.FromString(ours.SerializeToString())
assert type(theirs) is not type(ours)
assert (theirs.model_spec.name, theirs.model_spec.version.value) == ("m", 3)
np.testing.assert_array_equal(tf.make_ndarray(theirs.inputs["x"]), array)
theirs.inputs["x"].CopyFrom(tf.make_tensor_proto(array + 1))
back = serving_pb2.PredictRequest.FromString(theirs.SerializeToString())
np.testing.assert_array_equal(tensor_to_array(back.inputs["x"]), array + 1)
assert tensor_to_array(back.inputs["s"]).tolist() == [b"a"]
print("exchanged")
"""


@pytest.mark.parametrize("order", [(THEIRS, OURS), (OURS, THEIRS)], ids=["tensorflow first", "modelyard first"])
def test_messages_are_exchanged(order: tuple[str, str]) -> None:
    script = "\n".join([*order, EXCHANGE])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "exchanged"


def test_our_side_imports_without_a_warning() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", OURS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
