"""What every process needs. Nothing of it may compute: TensorFlow's threads do not survive a fork."""

from __future__ import annotations

import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1", TF_ENABLE_ONEDNN_OPTS="1")

import ai_edge_litert.interpreter  # noqa: E402, F401
import onnxruntime  # noqa: E402, F401
import tf2onnx  # noqa: E402, F401

from benchmarks.exporting import _judge, _routes  # noqa: E402, F401
from benchmarks.zoo import all_kinds  # noqa: E402

all_kinds()
