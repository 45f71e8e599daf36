"""A small Keras model with every kind of signature, exported once for the whole session."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from modelyard.artifact import EncodedImageFunction, SignatureFunction, TensorSpec, VerificationData
from modelyard.export import ExportOptions, Reference, TracedModel, compute_reference, trace

NAMES = ("cat", "dog", "<b>fish</b>")
COUNT = 90
# Each format in the runtime that it is first verified in: test_variants.py has the others.
# No time to measure TensorFlow in processes of its own: they take longer to start than all of this.
# Said here for the processes that tests start with them, too.
OPTIONS = ExportOptions(min_examples=64, latency_calls=20, measure_seconds=0.5, runtimes=(), isolate=False)
Signatures = Mapping[str, SignatureFunction | EncodedImageFunction]


class Classifier(tf.Module):
    """Three classes from 8 x 8 images; weights from a fixed seed."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(5)
        self.model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(4, 3, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Flatten(),
                keras.layers.Dense(len(NAMES)),
            ]
        )

    def predict(self, image: Any) -> dict[str, Any]:
        logits = self.model(image, training=False)
        class_id = tf.argmax(logits, -1, output_type=tf.int64)
        return {
            "probabilities": tf.nn.softmax(logits),
            "class_id": class_id,
            "label": tf.gather(tf.constant(NAMES), class_id),
        }

    def embed(self, image: Any, scale: Any) -> dict[str, Any]:
        return {"embedding": self.model.layers[0](image)[:, 0, 0, :] * scale[:, tf.newaxis]}


def preprocess(pixels: Any) -> Any:
    """Resizes the integers themselves, which is what people write, and what both converters trip over."""
    return tf.reduce_mean(tf.image.resize(pixels, [8, 8]), -1, keepdims=True) / 255.0


def make_signatures(classifier: Classifier) -> Signatures:
    image = TensorSpec(name="image", dtype="float32", shape=(-1, 8, 8, 1))
    return {
        # Declared before what it ends in: the order must not matter.
        "image_bytes": EncodedImageFunction(compute="serving_default", preprocess=preprocess, channels=3),
        "serving_default": SignatureFunction(inputs=(image,), function=classifier.predict),
        "embed": SignatureFunction(
            inputs=(image, TensorSpec(name="scale", dtype="float32", shape=(-1,))), function=classifier.embed
        ),
    }


def make_data(classifier: Classifier) -> VerificationData:
    rng = np.random.default_rng(1)
    images = rng.random((COUNT, 8, 8, 1), dtype=np.float32)
    encoded = np.empty(COUNT, dtype=object)
    for index in range(COUNT):
        buffer = io.BytesIO()
        size = (int(rng.integers(4, 30)), int(rng.integers(4, 30)))
        pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(buffer, ("PNG", "JPEG")[index % 2])
        encoded[index] = buffer.getvalue()
    labels = np.argmax(classifier.model(images).numpy(), -1)
    # A third is wrong, so that accuracy before and after is a figure that can be told from 1.
    labels[::3] = (labels[::3] + 1) % len(NAMES)
    return VerificationData(
        inputs={
            "serving_default": {"image": images},
            "image_bytes": {"image_bytes": encoded},
            "embed": {"image": images, "scale": rng.random(COUNT, dtype=np.float32)},
        },
        labels=labels.astype(np.int64),
        class_names=NAMES,
        description="random images",
    )


@pytest.fixture(scope="session")
def classifier() -> Classifier:
    return Classifier()


@pytest.fixture(scope="session")
def signatures(classifier: Classifier) -> Signatures:
    return make_signatures(classifier)


@pytest.fixture(scope="session")
def data(classifier: Classifier) -> VerificationData:
    return make_data(classifier)


@pytest.fixture(scope="session")
def traced(classifier: Classifier, signatures: Signatures) -> TracedModel:
    return trace(classifier, signatures)


@pytest.fixture(scope="session")
def reference(traced: TracedModel, data: VerificationData) -> Reference:
    return compute_reference(traced, data, options=OPTIONS)


@pytest.fixture(scope="session")
def converted(traced: TracedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every format, not verified."""
    from modelyard.export.formats import export_onnx, export_saved_model, export_tflite

    folder = tmp_path_factory.mktemp("converted")
    export_saved_model(traced, folder)
    export_onnx(traced, folder, opset=18)
    export_tflite(traced, folder)
    return folder
