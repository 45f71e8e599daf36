"""An exported model that takes tf.Example messages: classify, regress and predict over the same features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from modelyard.artifact import (
    CLASSIFY_METHOD,
    REGRESS_METHOD,
    AnyFunction,
    ExampleFunction,
    FeatureSpec,
    Source,
    VerificationData,
)

LABELS = ("low", "middle", "high")
X = FeatureSpec(name="x", dtype="float32", shape=(4,))
BIAS = FeatureSpec(name="bias/value", dtype="float32", shape=(1,), default=(0.25,), input="bias")
KIND = FeatureSpec(name="kind", dtype="int64", default=(2,))
FEATURES = (X, BIAS, KIND)


def make_model() -> Any:
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            rng = np.random.default_rng(3)
            self.weights = tf.Variable(rng.normal(size=(4, 3)).astype(np.float32))
            self.table = tf.Variable(rng.normal(size=(4, 3)).astype(np.float32))

        def logits(self, x: Any, bias: Any, kind: Any) -> Any:
            return x @ self.weights + bias + tf.gather(self.table, kind)

        def classify(self, x: Any, bias: Any, kind: Any) -> dict[str, Any]:
            scores, order = tf.math.top_k(tf.nn.softmax(self.logits(x, bias, kind)), 3)
            return {"classes": tf.gather(tf.constant(LABELS), order), "scores": scores}

        def regress(self, x: Any, bias: Any, kind: Any) -> dict[str, Any]:
            return {"outputs": tf.reduce_sum(self.logits(x, bias, kind), -1, keepdims=True)}

        def predict(self, x: Any, bias: Any, kind: Any) -> dict[str, Any]:
            return {"logits": self.logits(x, bias, kind)}

    return Model()


def make_signatures(model: Any) -> dict[str, AnyFunction]:
    return {
        "serving_default": ExampleFunction(features=FEATURES, function=model.predict, input="examples"),
        "classify": ExampleFunction(features=FEATURES, function=model.classify, method=CLASSIFY_METHOD),
        "regress": ExampleFunction(features=FEATURES, function=model.regress, method=REGRESS_METHOD),
    }


def make_examples(count: int) -> Any:
    """Serialized messages; every other one leaves its features with defaults out."""
    import tensorflow as tf

    rng = np.random.default_rng(4)
    messages = np.empty(count, dtype=object)
    for index in range(count):
        message = tf.train.Example()
        feature = message.features.feature
        feature["x"].float_list.value.extend(rng.normal(size=4).tolist())
        if index % 2:
            feature["bias/value"].float_list.value.append(float(rng.normal()))
            feature["kind"].int64_list.value.append(int(rng.integers(0, 4)))
        messages[index] = message.SerializeToString()
    return messages


def make_data(count: int) -> VerificationData:
    messages = make_examples(count)
    return VerificationData(
        inputs={
            "serving_default": {"examples": messages},
            "classify": {"inputs": messages},
            "regress": {"inputs": messages},
        },
        description="random examples",
    )


def publish_examples(model_dir: Path) -> Any:
    """Exports the model in every format; returns the report."""
    from modelyard.export import ExportOptions, export

    model = make_model()
    options = ExportOptions(min_examples=64, latency_calls=10)
    return export(
        model, model_dir, data=make_data(64), signatures=make_signatures(model), source=Source(), options=options
    )
