"""SavedModels of the kinds that TensorFlow Serving's users have, made with TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modelyard.artifact import DEFAULT_SIGNATURE


def save_tf1_half_plus_two(directory: Path) -> None:
    """A TF1-format model: y = 0.5 x + 2 over tensors and over tf.Example, with classify and regress signatures."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        a, b, c = (v1.Variable(value, name=name) for name, value in (("a", 0.5), ("b", 2.0), ("c", 3.0)))
        serialized = v1.placeholder(tf.string, shape=[None], name="tf_example")
        features = v1.parse_example(
            serialized,
            {
                "x": tf.io.FixedLenFeature([1], tf.float32),
                "x2": tf.io.FixedLenFeature([1], tf.float32, default_value=[0.0]),
            },
        )
        x = tf.identity(features["x"], name="x")
        y = tf.add(tf.multiply(a, x), b, name="y")
        y2 = tf.add(tf.multiply(a, x), c, name="y2")
        y3 = tf.add(tf.multiply(a, features["x2"]), c, name="y3")
        labels = tf.fill(tf.shape(y), "half")
        session.run(v1.global_variables_initializer())
        info = v1.saved_model.build_tensor_info
        regress, classify = "tensorflow/serving/regress", "tensorflow/serving/classify"
        build = v1.saved_model.build_signature_def
        signatures = {
            DEFAULT_SIGNATURE: build({"x": info(x)}, {"y": info(y)}, "tensorflow/serving/predict"),
            "regress_x_to_y": build({"inputs": info(serialized)}, {"outputs": info(y)}, regress),
            "regress_x_to_y2": build({"inputs": info(serialized)}, {"outputs": info(y2)}, regress),
            "regress_x2_to_y3": build({"inputs": info(serialized)}, {"outputs": info(y3)}, regress),
            "classify_x_to_y": build({"inputs": info(serialized)}, {"scores": info(y)}, classify),
            "classify_with_labels": build(
                {"inputs": info(serialized)}, {"classes": info(labels), "scores": info(y)}, classify
            ),
        }
        builder = v1.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(session, ["serve"], signature_def_map=signatures)
        builder.save()


def save_tf1_half_plus_three(directory: Path) -> None:
    """A TF1-format model as TensorFlow Serving's half_plus_three: y = 0.5 x + 3, with what it says wrongly of itself.

    ``tensorflow/serving/regress`` takes serialized Examples, and says that they are a float of no dimensions.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        a, b = (v1.Variable(value, name=name) for name, value in (("a", 0.5), ("b", 3.0)))
        serialized = v1.placeholder(tf.string, name="tf_example")
        parsed = v1.parse_example(serialized, {"x": tf.io.FixedLenFeature([1], tf.float32)})
        x = tf.identity(parsed["x"], name="x")
        y = tf.add(tf.multiply(a, x), b, name="y")
        session.run(v1.global_variables_initializer())

        def info(name: str) -> Any:
            return tf.compat.v1.saved_model.build_tensor_info(v1.get_default_graph().get_tensor_by_name(name))

        wrong = info("y:0")
        wrong.name = serialized.name
        del wrong.tensor_shape.dim[:]
        build = v1.saved_model.build_signature_def
        regress = "tensorflow/serving/regress"
        signatures = {
            DEFAULT_SIGNATURE: build({"x": info(x.name)}, {"y": info(y.name)}, "tensorflow/serving/predict"),
            regress: build({"inputs": wrong}, {"outputs": info(y.name)}, regress),
        }
        builder = v1.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(session, ["serve"], signature_def_map=signatures)
        builder.save()


def save_counter(directory: Path) -> None:
    """A TF1-format model with a state: a counter that requests read, raise and reset."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        counter = v1.Variable(0.0, name="counter", use_resource=False)
        delta = v1.placeholder(tf.float32, shape=[], name="delta")
        info = v1.saved_model.build_tensor_info

        def build(output: Any, inputs: dict[str, Any] | None = None) -> Any:
            named = {name: info(tensor) for name, tensor in (inputs or {}).items()}
            return v1.saved_model.build_signature_def(named, {"output": info(output)}, "tensorflow/serving/predict")

        signatures = {
            "get_counter": build(tf.identity(counter)),
            "incr_counter": build(v1.assign_add(counter, 1.0)),
            "incr_counter_by": build(v1.assign_add(counter, delta), {"delta": delta}),
            "reset_counter": build(v1.assign(counter, 0.0)),
        }
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(session, ["serve"], signature_def_map=signatures)
        builder.save()
