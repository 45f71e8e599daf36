"""A text classifier from raw strings, trained here, exported, and served where there is no TensorFlow."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from modelyard.artifact import ExampleFunction, FeatureSpec, SignatureFunction, TensorSpec, read_manifest
from modelyard.clients import connect
from modelyard.errors import InvalidRequestError
from modelyard.export import ExportOptions, export
from tests.support.server import RunningServer, serve, without

GOOD = ["A great film!", "great, warm and FUNNY", "what a lovely story", "Lovely actors; great fun", "warm and great"]
BAD = ["A boring film.", "boring, cold and LONG...", "what an awful story", "Awful actors; no fun", "cold and boring"]
LABELS = ["bad", "good"]
#: Case, punctuation, Unicode, nothing, unknown words, tags, many words.
TEXTS = [
    *GOOD, *BAD, "GREAT!!!", "boring?", "", "   ", "it's a naïve café — 日本語 😀", "Unknown words, entirely",
    "¡Lovely!", "a\tgreat\nfilm", "<b>awful</b> story", "great film " * 200,
]  # fmt: skip
ROWS = np.array([text.encode() for text in TEXTS], object)


class Sentiment(tf.Module):
    """Words, their embeddings, and a class with its name."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(0)
        self.words = keras.layers.TextVectorization(output_sequence_length=12)
        self.words.adapt([*GOOD, *BAD])
        size = self.words.vocabulary_size()
        self.model = keras.Sequential(
            [keras.layers.Embedding(size, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)]
        )
        self.names = keras.layers.StringLookup(vocabulary=LABELS, num_oov_indices=0, invert=True)

    def logits(self, texts: Any) -> Any:
        return self.model(self.words(texts))

    def predict(self, text: Any) -> dict[str, Any]:
        logits = self.logits(text)
        return {"scores": tf.nn.softmax(logits), "label": self.names(tf.argmax(logits, -1))}


@pytest.fixture(scope="module")
def sentiment() -> Sentiment:
    module = Sentiment()
    texts, classes = tf.constant([*GOOD, *BAD]), tf.constant([1] * len(GOOD) + [0] * len(BAD))
    module.logits(texts)
    optimizer = keras.optimizers.Adam(0.1)

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(classes, module.logits(texts)))
        weights = module.model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    losses = [float(step()) for _ in range(30)]
    assert losses[-1] < 0.1 * losses[0]
    unseen = module.predict(tf.constant(["GREAT!!!", "boring?"]))["label"]
    assert unseen.numpy().tolist() == [b"good", b"bad"]
    return module


@pytest.fixture(scope="module")
def expected(sentiment: Sentiment) -> dict[str, Any]:
    return {name: value.numpy() for name, value in sentiment.predict(tf.constant(TEXTS)).items()}


@pytest.fixture(scope="module")
def server(sentiment: Sentiment, session_dir: Path) -> Iterator[RunningServer]:
    spec = TensorSpec(name="text", dtype="string", shape=(-1,))
    feature = FeatureSpec(name="text", dtype="string")
    message = tf.train.Example()
    messages = []
    for row in ROWS:
        message.features.feature["text"].bytes_list.value[:] = [row]
        messages.append(message.SerializeToString())
    report = export(
        sentiment,
        session_dir / "sentiment",
        signatures={
            "serving_default": SignatureFunction(inputs=(spec,), function=sentiment.predict),
            "examples": ExampleFunction(features=(feature,), function=sentiment.predict),
        },
        data={"serving_default": {"text": ROWS}, "examples": {"inputs": np.array(messages, object)}},
        options=ExportOptions(
            min_examples=16, latency_calls=10, measure_seconds=0.5, runtimes=(), optional=("tflite",)
        ),
    )
    manifest = read_manifest(report.version.path)
    assert manifest.formats["onnx"].domains == ("ai.onnx.ml", "com.microsoft")
    assert manifest.formats["saved_model"].domains == ()
    assert "TFLite has no operators" in manifest.absent["tflite"]
    env = without(session_dir / "sentiment_without_tensorflow", "tensorflow", "keras")
    with serve(session_dir / "sentiment", model="sentiment", log_dir=session_dir, env=env) as running:
        yield running


@pytest.mark.parametrize("protocol", ["grpc", "http", "grpc+v2", "http+v2"])
def test_a_client_gets_what_the_source_computes(server: RunningServer, expected: Any, protocol: str) -> None:
    port = server.grpc_port if protocol.startswith("grpc") else server.rest_port
    with connect(f"{protocol}://127.0.0.1:{port}") as client:
        answer = client.predict("sentiment", {"text": ROWS})
        one = client.predict("sentiment", {"text": ROWS[:1]})
        with pytest.raises(InvalidRequestError, match=r"'text' holds a string that is not UTF-8"):
            client.predict("sentiment", {"text": np.array([b"\xff"], object)})
    np.testing.assert_allclose(answer["scores"], expected["scores"], rtol=0, atol=1e-6)
    assert answer["label"].tolist() == expected["label"].tolist()
    assert one["label"].tolist() == [b"good"]


def test_rest_takes_text_and_base64(server: RunningServer, expected: Any) -> None:
    encoded = [{"b64": base64.b64encode(row).decode()} for row in ROWS]
    for rows in (TEXTS, encoded):
        status, text = server.post("/v1/models/sentiment:predict", json.dumps({"instances": rows}).encode())
        assert status == 200, text
        predictions = json.loads(text)["predictions"]
        assert [each["label"].encode() for each in predictions] == expected["label"].tolist()
        np.testing.assert_allclose([each["scores"] for each in predictions], expected["scores"], rtol=0, atol=1e-6)


def test_examples_hold_text(server: RunningServer, expected: Any) -> None:
    messages = []
    for row in ROWS:
        message = tf.train.Example()
        message.features.feature["text"].bytes_list.value.append(row)
        messages.append(message.SerializeToString())
    with connect(f"grpc://{server.grpc_address}") as client:
        answer = client.predict("sentiment", {"inputs": np.array(messages, object)}, signature="examples")
    np.testing.assert_allclose(answer["scores"], expected["scores"], rtol=0, atol=1e-6)
    assert answer["label"].tolist() == expected["label"].tolist()
