"""Plain networks, and the ways in which Keras models are put together."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from benchmarks.zoo._kind import floats, integers, kind, named

layers = keras.layers


@kind(floats(4))
def dense() -> Any:
    """Dense layers in a Sequential."""
    return keras.Sequential([keras.Input((4,)), layers.Dense(8, activation="relu"), layers.Dense(3)])


@kind(floats(4))
def softmax_classifier() -> Any:
    """Classifier with batch norm, dropout and softmax."""
    x = keras.Input((4,), name="features")
    h = layers.Dropout(0.5)(layers.BatchNormalization()(layers.Dense(8, activation="gelu")(x)))
    return keras.Model(x, layers.Dense(3, activation="softmax", name="scores")(layers.GaussianNoise(0.1)(h)))


@kind(floats(8))
def activations() -> Any:
    """PReLU, ELU, SELU, GELU, SiLU, mish, hard sigmoid."""
    x = keras.Input((8,))
    h = layers.ELU()(layers.LeakyReLU()(layers.PReLU()(x)))
    for name in ("gelu", "silu", "mish", "selu", "softplus", "hard_sigmoid"):
        h = layers.Activation(name)(h)
    return keras.Model(x, layers.Softmax()(layers.Dense(4)(h)))


@kind(floats(4))
def lambda_layer() -> Any:
    """Lambda layer with TensorFlow inside."""
    x = keras.Input((4,))
    return keras.Model(x, layers.Lambda(lambda v: tf.nn.l2_normalize(v, 1))(layers.Dense(3)(x)))


@kind(named(a=floats(4), b=floats(4)))
def layer_twice() -> Any:
    """One layer called twice, two outputs."""
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    tower = layers.Dense(3, name="tower")
    return keras.Model([a, b], [tower(a), tower(b)])


@kind(named(left=floats(4), right=floats(4)))
def siamese() -> Any:
    """Siamese network: shared tower, distance and both embeddings."""
    left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
    tower = keras.Sequential([keras.Input((4,)), layers.Dense(6, activation="tanh"), layers.Dense(3)], name="tower")
    x, y = tower(left), tower(right)
    return keras.Model([left, right], [layers.Dot(1, normalize=True)([x, y]), x, y])


@kind(floats(4))
def nested_outputs() -> Any:
    """Outputs nested in dictionaries and lists."""
    x = keras.Input((4,), name="x")
    a, b = layers.Dense(3), layers.Dense(2)
    return keras.Model(x, {"pair": {"a": a(x), "b": b(x)}, "list": [a(x) * 2, b(x) * 3]})


@kind(named(image=floats(8, 8, 3), numbers=floats(5), code=integers(9)))
def multi_input() -> Any:
    """Image, numbers and a category in; a class and a number out."""
    image, numbers = keras.Input((8, 8, 3), name="image"), keras.Input((5,), name="numbers")
    code = keras.Input((), dtype="int32", name="code")
    seen = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3)(image))
    h = layers.Dense(8, activation="relu")(layers.Concatenate()([seen, numbers, layers.Embedding(9, 4)(code)]))
    return keras.Model(
        {"image": image, "numbers": numbers, "code": code},
        {"class": layers.Dense(3, activation="softmax")(h), "price": layers.Dense(1)(h)},
    )


class Subclassed(keras.Model):
    """Made as people make them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.hidden, self.out = layers.Dense(8, activation="relu"), layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.out(self.hidden(x))


@kind(floats(4))
def subclassed() -> Any:
    """Subclassed model that was called."""
    model = Subclassed()
    model(tf.zeros([1, 4]))
    return model


class TwoArguments(keras.Model):
    """Takes tokens and which of them count."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.embed, self.out = layers.Embedding(20, 6), layers.Dense(3)

    def call(self, ids: Any, mask: Any, training: bool = False) -> Any:
        h = self.embed(ids) * mask[..., None]
        return {"mean": self.out(tf.reduce_mean(h, 1)), "largest": tf.reduce_max(h, [1, 2])}


@kind(
    named(ids=integers(20, 5), mask=lambda rng, n: (rng.random((n, 5)) > 0.3).astype("float32")),
    signatures=("ids:int32[-1,5]", "mask:float32[-1,5]"),
)
def subclassed_two_arguments() -> Any:
    """Subclassed model of two arguments, inputs declared."""
    model = TwoArguments()
    model(tf.zeros([1, 5], tf.int32), tf.zeros([1, 5]))
    return model


@kind(floats(6))
def mixture_of_experts() -> Any:
    """Mixture of experts with a gate of the best two."""
    x = keras.Input((6,), name="x")
    gate, chosen = keras.ops.top_k(layers.Dense(4, activation="softmax")(x), 2)
    experts = keras.ops.stack([layers.Dense(3)(x) for _ in range(4)], 1)
    picked = keras.ops.take_along_axis(experts, keras.ops.expand_dims(chosen, -1), 1)
    return keras.Model(x, keras.ops.sum(picked * keras.ops.expand_dims(gate, -1), 1))


@kind(floats(6))
def residual_blocks() -> Any:
    """Models nested in a model, with residual sums."""
    x = keras.Input((6,), name="x")
    h: Any = x
    for index in range(2):
        inner = keras.Input((6,))
        block = keras.Model(inner, layers.LayerNormalization()(inner + layers.Dense(6, activation="relu")(inner)))
        block.name = f"block_{index}"
        h = block(h)
    return keras.Model(x, layers.Dense(2)(h))


@kind(floats(4))
def ensemble() -> Any:
    """Ensemble: mean and deviation of three networks."""
    x = keras.Input((4,), name="x")
    votes = keras.ops.stack([layers.Dense(3, activation="softmax")(x) for _ in range(3)])
    return keras.Model(x, {"mean": keras.ops.mean(votes, 0), "deviation": keras.ops.std(votes, 0)})


@kind(floats(4), tolerance=1e-2)
def mixed_bfloat16() -> Any:
    """Policy mixed_bfloat16."""
    return _mixed("mixed_bfloat16")


@kind(floats(4), tolerance=1e-2)
def mixed_float16() -> Any:
    """Policy mixed_float16."""
    return _mixed("mixed_float16")


def _mixed(policy: str) -> Any:
    x = keras.Input((4,), name="x")
    h = layers.LayerNormalization(dtype=policy)(layers.Dense(8, activation="relu", dtype=policy)(x))
    return keras.Model(x, layers.Dense(3, dtype="float32")(h))


class FakeQuantized(keras.layers.Layer):
    """A dense layer as quantization-aware training makes it."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = units

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], self.units))

    def call(self, x: Any) -> Any:
        kernel = tf.quantization.fake_quant_with_min_max_vars_per_channel(
            self.kernel.value, tf.fill([self.units], -1.0), tf.fill([self.units], 1.0), narrow_range=True
        )
        return tf.quantization.fake_quant_with_min_max_vars(x @ kernel, -4.0, 4.0)


@kind(floats(6), tolerance=5e-2)
def quantization_aware() -> Any:
    """Quantization-aware training: fake-quantized weights and activations."""
    x = keras.Input((6,), name="x")
    return keras.Model(x, layers.Dense(2)(layers.ReLU()(FakeQuantized(8)(x))))
