"""--device: what is missing is refused by name, and what is there computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from modelyard.errors import ConfigurationError, LoadError, MissingDependencyError
from modelyard.serving.backends import OnnxRuntimeBackend, OpenVinoBackend, device_runtime, read_device
from modelyard.serving.backends._devices import _SMALLEST

HAS_CUDA = "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def test_the_runtime_of_a_device() -> None:
    assert [device_runtime(each) for each in ("cpu", "cuda:1", "openvino:GPU")] == [None, "onnxruntime", "openvino"]


@pytest.mark.parametrize("name", ["", "CPU", "gpu", "cuda:", "cuda:-1", "cuda1", "openvino", "openvino:", "openvino:g"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"expected cpu, cuda or cuda:NUMBER .* or openvino:"):
        read_device(name)


@pytest.mark.parametrize("name", ["openvino:TPU", "openvino:CPU.7", "openvino:AUTO"])
def test_devices_that_openvino_does_not_find(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"--device={name}; OpenVINO finds (.*, )?CPU"):
        read_device(name)


def test_openvino_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'modelyard\[openvino\]'"):
        read_device("openvino:GPU")
    with pytest.raises(ConfigurationError, match="installed is no onnxruntime"):
        read_device("cuda")


@pytest.mark.skipif(HAS_CUDA, reason="this onnxruntime has CUDA")
def test_an_onnxruntime_without_cuda(scores_onnx: Path) -> None:
    with pytest.raises(ConfigurationError, match="installed is onnxruntime .*CPUExecutionProvider") as caught:
        read_device("cuda:1")
    assert "pip install 'onnxruntime-gpu[cuda,cudnn]'" in caught.value.message
    with pytest.warns(UserWarning), pytest.raises(LoadError, match="CUDAExecutionProvider did not start on cuda:1"):
        OnnxRuntimeBackend({"graph": scores_onnx}, threads=1, device="cuda:1")


def test_the_smallest_model_is_one() -> None:
    session = onnxruntime.InferenceSession(_SMALLEST, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.full(1, 3, np.float32)})
    assert y.tolist() == [3.0]


def test_openvino_computes_on_the_device(scores_onnx: Path, images: np.ndarray) -> None:
    assert read_device("openvino:CPU") == "openvino:CPU"
    backend = OpenVinoBackend({"graph": scores_onnx}, threads=1, requests=1, device="openvino:CPU")
    scores = backend.run("graph", {"image": images}, ["scores"])["scores"]
    np.testing.assert_array_equal(scores, images.reshape(2, 6)[:, :4])
    with pytest.raises(LoadError, match="cannot compile graph 'graph' for TPU"):
        OpenVinoBackend({"graph": scores_onnx}, threads=1, requests=1, device="openvino:TPU")
