"""Recurrent and convolutional networks over sequences."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.zoo._kind import floats, integers, kind, module, named, spec, weights

layers = keras.layers


def _steps(width: int) -> Any:
    """Sequences whose length differs from call to call."""
    return lambda rng, n: rng.normal(size=(n, int(rng.integers(3, 12)), width)).astype(np.float32)


def _ids(high: int) -> Any:
    return lambda rng, n: rng.integers(1, high, (n, int(rng.integers(3, 12)))).astype(np.int32)


@kind(integers(50, 12))
def lstm() -> Any:
    """Embedding and LSTM."""
    ids = keras.Input((12,), dtype="int32", name="ids")
    return keras.Model(ids, layers.Dense(2)(layers.LSTM(8)(layers.Embedding(50, 6)(ids))))


@kind(floats(9, 6))
def lstm_backwards() -> Any:
    """LSTM that goes backwards."""
    x = keras.Input((9, 6), name="x")
    return keras.Model(x, layers.LSTM(5, go_backwards=True)(x))


@kind(_steps(6))
def bidirectional_lstm() -> Any:
    """Bidirectional LSTM of free length, an output for each step."""
    x = keras.Input((None, 6), name="x")
    return keras.Model(x, layers.Bidirectional(layers.LSTM(5, return_sequences=True))(x))


@kind(floats(9, 6))
def gru_with_state() -> Any:
    """GRU that returns its steps and its last state."""
    x = keras.Input((9, 6), name="x")
    return keras.Model(x, layers.GRU(5, return_state=True, return_sequences=True)(x))


@kind(_steps(6))
def simple_rnn() -> Any:
    """SimpleRNN of free length."""
    x = keras.Input((None, 6), name="x")
    return keras.Model(x, layers.SimpleRNN(5)(x))


@kind(lambda rng, n: (rng.normal(size=(n, 9, 6)) * (rng.random((n, 9, 1)) > 0.3)).astype(np.float32))
def masking() -> Any:
    """Masking before an LSTM."""
    x = keras.Input((9, 6), name="x")
    return keras.Model(x, layers.LSTM(5)(layers.Masking()(x)))


@kind(integers(30, 9))
def embedding_mask() -> Any:
    """Embedding with mask_zero before stacked GRUs."""
    ids = keras.Input((9,), dtype="int32", name="ids")
    h = layers.GRU(5, return_sequences=True)(layers.Embedding(30, 4, mask_zero=True)(ids))
    return keras.Model(ids, layers.GRU(3)(h))


@kind(floats(3, 8, 8, 2))
def convlstm() -> Any:
    """ConvLSTM2D."""
    x = keras.Input((3, 8, 8, 2), name="film")
    return keras.Model(x, layers.ConvLSTM2D(4, 3)(x))


@kind(floats(4, 6, 6, 3))
def time_distributed() -> Any:
    """TimeDistributed convolution before an LSTM."""
    x = keras.Input((4, 6, 6, 3), name="film")
    frame = keras.Sequential([keras.Input((6, 6, 3)), layers.Conv2D(4, 3, activation="relu"), layers.Flatten()])
    return keras.Model(x, layers.LSTM(5)(layers.TimeDistributed(frame)(x)))


@kind(floats(16, 3))
def causal_convolution() -> Any:
    """Dilated causal Conv1D blocks (TCN)."""
    x = keras.Input((16, 3), name="x")
    h: Any = x
    for rate in (1, 2, 4):
        h = layers.Conv1D(4, 3, dilation_rate=rate, padding="causal", activation="relu")(h)
    return keras.Model(x, layers.GlobalMaxPooling1D()(h))


@kind(_steps(3))
def convolution_free_length() -> Any:
    """Conv1D of free length with pooling and an output for each step."""
    x = keras.Input((None, 3), name="x")
    return keras.Model(
        x, layers.Dense(2)(layers.MaxPooling1D(2, padding="same")(layers.Conv1D(4, 3, padding="same")(x)))
    )


@kind(named(source=integers(30, 7), target=integers(30, 5)))
def encoder_decoder() -> Any:
    """Encoder and decoder LSTM, teacher forcing."""
    source, target = keras.Input((7,), dtype="int32", name="source"), keras.Input((5,), dtype="int32", name="target")
    embed = layers.Embedding(30, 6)
    _, *state = layers.LSTM(5, return_state=True)(embed(source))
    steps = layers.LSTM(5, return_sequences=True)(embed(target), initial_state=state)
    return keras.Model([source, target], layers.Dense(30)(steps))


@kind(named(x=floats(4), h=floats(5), c=floats(5)))
def recurrent_step() -> Any:
    """One step of an LSTM cell, its state as inputs and outputs."""
    x, h, c = keras.Input((4,), name="x"), keras.Input((5,), name="h"), keras.Input((5,), name="c")
    y, (h_next, c_next) = layers.LSTMCell(5)(x, [h, c])
    return keras.Model([x, h, c], {"y": y, "h_next": h_next, "c_next": c_next})


class LeakyCell(keras.layers.Layer):
    """A recurrent cell of one's own: leaky integration."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = self.state_size = self.output_size = units
        self.project = layers.Dense(units)

    def build(self, shape: Any) -> None:
        self.project.build(shape)

    def call(self, x: Any, states: Any) -> Any:
        state = 0.9 * states[0] + 0.1 * keras.ops.tanh(self.project(x))
        return state, [state]


@kind(floats(6, 4))
def custom_cell() -> Any:
    """RNN with a cell of one's own."""
    x = keras.Input((6, 4), name="x")
    return keras.Model(x, layers.RNN(LeakyCell(5), return_sequences=True)(x))


@kind(floats(8))
def forecast_loop() -> Any:
    """Forecast that feeds itself, six steps in a TensorArray."""
    w = weights(8, 1)

    def serve(window: Any) -> Any:
        steps = tf.TensorArray(tf.float32, 6, element_shape=[None, 1])
        for index in tf.range(6):
            value = tf.tanh(window @ w)
            steps = steps.write(index, value)
            window = tf.concat([window[:, 1:], value], 1)
        return tf.transpose(steps.stack()[..., 0])

    return module(serve, spec(None, 8), w=w)


@kind(integers(12, 4))
def greedy_decoder() -> Any:
    """Greedy decoding: a GRU that writes six tokens."""
    embed, cell, out = weights(12, 6), layers.GRUCell(6), layers.Dense(12)
    cell.build((None, 6))
    out.build((None, 6))

    def serve(prompt: Any) -> Any:
        state = tf.reduce_mean(tf.gather(embed, prompt), 1)
        token = prompt[:, -1]
        tokens = tf.TensorArray(tf.int32, 6, element_shape=[None])
        for index in tf.range(6):
            state, _ = cell(tf.gather(embed, token), [state])
            token = tf.argmax(out(state), 1, output_type=tf.int32)
            tokens = tokens.write(index, token)
        return {"tokens": tf.transpose(tokens.stack())}

    return module(serve, spec(None, 4, dtype=tf.int32), embed=embed, cell=cell, out=out)


@kind(floats(7, 5))
def crf_viterbi() -> Any:
    """Tagger with a Viterbi scan over its steps."""
    transitions = weights(4, 4)
    emit = weights(5, 4)

    def serve(x: Any) -> Any:
        scores = tf.transpose(tf.einsum("nti,ij->ntj", x, emit), [1, 0, 2])
        best = tf.scan(lambda a, s: s + tf.reduce_max(a[:, :, None] + transitions, 1), scores)
        return {"best": tf.reduce_max(best[-1], 1), "last_tag": tf.argmax(best[-1], 1)}

    return module(serve, spec(None, 7, 5), transitions=transitions, emit=emit)
