"""Keras files of models that were trained on PyTorch or JAX, held to what those backends answer."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import keras
import numpy as np
import pytest

from modelyard.artifact import read_manifest
from modelyard.errors import ConfigurationError, VerificationError
from modelyard.export import ExportOptions, export
from modelyard.serving import LoadOptions, load_servable

# Keras and h5py on numpy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
OPTIONS = ExportOptions(min_examples=16, latency_calls=10, measure_seconds=0.2, runtimes=(), isolate=False)
#: Layers whose weights and rules the backends keep in ways of their own, on real images.
SOURCE = """
import sys
import keras
import numpy as np
from modelyard.training.data import load_fashion_mnist
assert keras.backend.backend() == sys.argv[1]
keras.utils.set_random_seed(0)
data = load_fashion_mnist()
images = (data.train_images[:320].reshape(-1, 28, 28, 1) / 255).astype(np.float32)
labels = data.train_labels[:320]
image = keras.Input((28, 28, 1), name="image")
x = keras.layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(image)
x = keras.layers.Dropout(0.2)(keras.layers.ReLU()(keras.layers.BatchNormalization()(x)))
rows = keras.layers.LSTM(16)(keras.layers.Reshape((14, -1))(x))
x = keras.layers.Concatenate()([keras.layers.GlobalAveragePooling2D()(x), rows])
model = keras.Model(image, keras.layers.Dense(10, activation="softmax", name="scores")(x))
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
losses = model.fit(images[:256], labels[:256], batch_size=32, epochs=3, verbose=0).history["loss"]
assert losses[-1] < losses[0] - 0.2, losses
model.save("model.keras")
np.savez("examples.npz", image=images[256:])
np.savez("answers.npz", scores=model.predict(images[256:], verbose=0))
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_files_of_other_backends(backend: str, tmp_path: Path) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    env = {**os.environ, "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
    # It hides libraries from Keras, which torch looks for through it.
    env.pop("PYTHONPATH", None)
    command = [sys.executable, "-c", SOURCE, backend]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    data, answers = tmp_path / "examples.npz", tmp_path / "answers.npz"
    report = export(
        tmp_path / "model.keras", tmp_path / "models" / "fashion", data=data, expected=answers, options=OPTIONS
    )
    assert {*report.checks} == {"saved_model", "onnx", "tflite"}
    # Two backends never agree to the last bit: that is who the formats were compared with.
    assert all(0 < check.report.max_abs_error < 1e-5 for check in report.checks.values())
    servable = load_servable("fashion", 1, report.version.path, LoadOptions())
    with np.load(data) as inputs, np.load(answers) as outputs:
        found = servable.run(servable.signatures["serving_default"], dict(inputs), ["scores"])["scores"]
        np.testing.assert_allclose(found, outputs["scores"], atol=1e-5)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    x = keras.Input((3,), name="x")
    keras.Model(x, keras.layers.Dense(2, name="y")(x)).save(tmp_path / "model.keras")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32))
    return tmp_path / "model.keras"


def test_answers_that_the_file_does_not_give(saved: Path) -> None:
    model = keras.models.load_model(saved)
    with np.load(saved.with_name("x.npz")) as file:
        x = file["x"]
    expected = model(x).numpy()
    folder = saved.parent / "models" / "m"
    report = export(saved, folder, data={"x": x}, expected={"y": expected}, options=OPTIONS, formats=["saved_model"])
    assert read_manifest(report.version.path).formats["saved_model"].verify.max_abs_error < 1e-6
    expected[5, 1] += 1e-3
    with pytest.raises(VerificationError, match=r"'y' has an absolute error of 0\.001, .*example 5"):
        export(saved, folder, data={"x": x}, expected={"y": expected}, options=OPTIONS, formats=["saved_model"])


def test_an_export_with_another_backend_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ConfigurationError, match=r"Keras computes with jax in this process \(KERAS_BACKEND, "):
        export(saved, saved.parent / "models" / "m", data=saved.with_name("x.npz"), options=OPTIONS)
