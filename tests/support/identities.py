"""A SavedModel with one identity signature for each dtype, beside y = 0.5 x + 2: what goes in must come out."""

from __future__ import annotations

from pathlib import Path

from modelyard.artifact import DEFAULT_SIGNATURE

DTYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "string",
)  # fmt: skip


def save_identities(directory: Path) -> None:
    """Signatures ``identity_<dtype>`` (``x`` to ``y``, any shape), ``two``, ``total`` and the default one."""
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = tf.Variable(0.5)
            self.b = tf.Variable(2.0)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def half(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": self.a * x + self.b}

        @tf.function(
            input_signature=[tf.TensorSpec([None], tf.float32, name="x"), tf.TensorSpec([None], tf.int64, name="n")]
        )
        def two(self, x: tf.Tensor, n: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": self.a * x + self.b, "next": n + 1}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def total(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"sum": tf.reduce_sum(x)}

    def identity(dtype: str) -> tf.types.experimental.ConcreteFunction:
        spec = tf.TensorSpec([None, None], dtype, name="x")
        return tf.function(lambda x: {"y": tf.identity(x)}, input_signature=[spec]).get_concrete_function()

    module = Model()
    signatures = {f"identity_{dtype}": identity(dtype) for dtype in DTYPES}
    signatures |= {DEFAULT_SIGNATURE: module.half, "two": module.two, "total": module.total}
    tf.saved_model.save(module, str(directory), signatures=signatures)
