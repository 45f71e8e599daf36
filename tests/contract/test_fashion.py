"""The exported fashion model in each format: the same answers over both protocols, with and without TensorFlow."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelyard.clients import Client, connect
from modelyard.errors import InvalidInputError, InvalidRequestError
from modelyard.training.data import load_fashion_mnist
from tests.support.server import RunningServer, serve, without

RUNTIMES = ("onnxruntime", "litert", "openvino", "tensorflow")


@pytest.fixture(scope="module")
def images() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return load_fashion_mnist().test_images[:64]


def png(image: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    from io import BytesIO

    from PIL import Image

    buffer = BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module", params=RUNTIMES)
def server(request: pytest.FixtureRequest, fashion_model_dir: Path, session_dir: Path) -> Iterator[RunningServer]:
    flags = [f"--runtime={request.param}"]
    with serve(fashion_model_dir, model="fashion", log_dir=session_dir, flags=flags) as running:
        yield running


@pytest.fixture(params=["grpc", "rest"])
def client(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Client]:
    url = f"grpc://{server.grpc_address}" if request.param == "grpc" else server.rest_url
    with connect(url) as connected:
        yield connected


@pytest.fixture(scope="module")
def expected(fashion_model_dir: Path, images, session_dir: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Probabilities from TensorFlow's own reading of the SavedModel, in this process."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(fashion_model_dir / "1"))
    batch = tf.constant(images[..., None].astype(np.float32) / np.float32(255))
    return np.asarray(loaded.signatures["serving_default"](image=batch)["probabilities"])


def test_tensors(client: Client, images, expected) -> None:
    answer = client.predict("fashion", {"image": images[..., None].astype(np.float32) / np.float32(255)})
    assert answer["probabilities"].dtype == np.float32
    assert np.abs(answer["probabilities"] - expected).max() < 1e-5
    assert answer["class_id"].tolist() == expected.argmax(axis=1).tolist()
    assert answer["class_id"].dtype == np.int64
    names = load_fashion_mnist().class_names
    assert [label.decode() for label in answer["label"]] == [names[index] for index in expected.argmax(axis=1)]


def test_encoded_images(client: Client, images, expected) -> None:
    encoded = [png(image) for image in images]
    answer = client.predict("fashion", {"image_bytes": encoded}, signature="image_bytes")
    assert np.abs(answer["probabilities"] - expected).max() < 1e-5
    assert answer["class_id"].tolist() == expected.argmax(axis=1).tolist()


@pytest.mark.parametrize("size", [1, 3])
def test_any_batch_size(client: Client, images, expected, size: int) -> None:
    batch = images[:size, ..., None].astype(np.float32) / np.float32(255)
    answer = client.predict("fashion", {"image": batch}, outputs=["probabilities"])
    assert list(answer) == ["probabilities"]
    assert np.abs(answer["probabilities"] - expected[:size]).max() < 1e-5


def test_a_truncated_image_costs_only_the_sender(client: Client, images, expected) -> None:
    data = png(images[0])
    # TensorFlow's own decoder words it differently; without it the words are ours.
    words = "element 1: [0-9]+ bytes are not a complete image|TensorFlow refuses the inputs of signature 'image_bytes'"
    with pytest.raises(InvalidRequestError, match=words):
        client.predict("fashion", {"image_bytes": [data, data[: len(data) // 2]]}, signature="image_bytes")
    answer = client.predict("fashion", {"image_bytes": [data]}, signature="image_bytes")
    assert answer["class_id"].tolist() == [int(expected[0].argmax())]


@pytest.mark.parametrize("shape", [(1, 27, 28, 1), (28, 28, 1), (1, 28, 28)])
def test_a_wrong_shape_names_what_was_expected(client: Client, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError, match=r"\[-1,28,28,1\]"):
        client.predict("fashion", {"image": np.zeros(shape, np.float32)})


def test_rest_rows_with_base64(server: RunningServer, images, expected) -> None:
    instances = [{"b64": base64.b64encode(png(image)).decode()} for image in images[:3]]
    body = {"signature_name": "image_bytes", "instances": instances}
    status, text = server.post("/v1/models/fashion:predict", json.dumps(body).encode())
    assert status == 200, text
    rows = json.loads(text)["predictions"]
    assert [row["class_id"] for row in rows] == expected[:3].argmax(axis=1).tolist()


@pytest.mark.parametrize("formats", [("onnx",), ("model.tflite",)], ids=["onnx only", "tflite only"])
def test_without_tensorflow(fashion_model_dir: Path, tmp_path: Path, images, expected, formats) -> None:
    """A process in which TensorFlow cannot be imported serves the siblings, encoded images included."""
    runtime = "onnxruntime" if formats == ("onnx",) else "litert"
    env = without(tmp_path / "blocked", "tensorflow", "keras")
    flags = [f"--runtime={runtime}"]
    with serve(fashion_model_dir, model="fashion", log_dir=tmp_path, flags=flags, env=env) as server:
        with connect(f"grpc://{server.grpc_address}") as client:
            encoded = [png(image) for image in images[:8]]
            answer = client.predict("fashion", {"image_bytes": encoded}, signature="image_bytes")
        assert np.abs(answer["probabilities"] - expected[:8]).max() < 1e-5
        assert f"AVAILABLE in {runtime}" in server.log_text()


@pytest.fixture(scope="module")
def raw_model_dir(fashion_model_dir: Path, session_dir: Path) -> Path:
    """The SavedModel alone, as somebody else's would be."""
    version = session_dir / "raw" / "1"
    version.mkdir(parents=True)
    shutil.copy(fashion_model_dir / "1" / "saved_model.pb", version)
    shutil.copytree(fashion_model_dir / "1" / "variables", version / "variables")
    return version.parent


def test_a_raw_saved_model_without_tensorflow_is_served_by_openvino(
    raw_model_dir: Path, tmp_path: Path, images, expected
) -> None:
    env = without(tmp_path / "blocked", "tensorflow", "keras")
    with serve(raw_model_dir, model="raw", log_dir=tmp_path, env=env) as server:
        with connect(f"grpc://{server.grpc_address}") as client:
            batch = images[..., None].astype(np.float32) / np.float32(255)
            answer = client.predict("raw", {"image": batch}, outputs=["probabilities"])
        assert np.abs(answer["probabilities"] - expected).max() < 1e-5
        text = server.log_text()
    assert "no other runtime for a SavedModel is installed, so openvino serves it" in text
    assert "model raw version 1 is AVAILABLE in openvino" in text


@pytest.mark.parametrize("flags", [[], ["--runtime=tensorflow"], ["--runtime=openvino"]])
def test_a_raw_saved_model_without_a_runtime_says_what_helps(
    raw_model_dir: Path, tmp_path: Path, flags: list[str]
) -> None:
    env = without(tmp_path / "blocked", "tensorflow", "keras", "openvino")
    with serve(raw_model_dir, model="raw", log_dir=tmp_path, env=env, flags=flags, wait=False) as server:
        server.wait_until(lambda: '"END"' in server.get("/v1/models/raw")[1], 30, "refused")
        ways = ["pip install 'modelyard[openvino]'"]
        if flags != ["--runtime=openvino"]:
            ways += ["pip install 'modelyard[tensorflow]'", "--runtime=openvino", "modelyard export"]
        status, error = server.post("/v1/models/raw:predict", b'{"instances": [1]}')
        for text in (error, server.get("/v1/models/raw")[1]):
            assert [way for way in ways if way not in text] == [], text
        assert status == 404


def test_a_runtime_that_is_not_installed_claims_nothing_about_siblings(fashion_model_dir: Path, tmp_path: Path) -> None:
    env = without(tmp_path / "blocked", "tensorflow", "keras")
    flags = ["--runtime=tensorflow"]
    with serve(fashion_model_dir, model="fashion", log_dir=tmp_path, env=env, flags=flags, wait=False) as server:
        server.wait_until(lambda: '"END"' in server.get("/v1/models/fashion")[1], 30, "refused")
        error = server.post("/v1/models/fashion:predict", b'{"instances": [1]}')[1]
    assert "pip install 'modelyard[tensorflow]'; without that, onnxruntime or litert or openvino can serve it" in error
