"""Models that come as files, of today and of before."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.zoo._kind import floats, integers, kind, named

layers = keras.layers


def _network() -> Any:
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(2, name="y")(layers.Dense(6, activation="relu")(x)))


def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="zoo-")) / "model"


@kind(floats(4), suffix=".keras")
def keras_file() -> Any:
    """A .keras file."""
    return _network()


@kind(floats(4), suffix=".h5")
def h5_file() -> Any:
    """A .h5 file."""
    return _network()


@kind(floats(4))
def keras_export() -> Any:
    """SavedModel written by Keras 3 (model.export)."""
    path = _folder()
    _network().export(path, verbose=False)
    return path


@kind(named(inputs=floats(4)))
def tf1_saved_model() -> Any:
    """SavedModel of TensorFlow 1: graph and session."""
    path = _folder()
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 4], "x")
        w = tf.compat.v1.get_variable("w", initializer=np.linspace(-1, 1, 12).reshape(4, 3).astype(np.float32))
        y = tf.nn.softmax(x @ w)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            tf.compat.v1.saved_model.simple_save(session, str(path), {"inputs": x}, {"scores": y})
    return path


@kind(named(x=floats(4)), needs=("tf_keras",))
def keras2_saved_model() -> Any:
    """SavedModel written by Keras 2."""
    tf_keras = importlib.import_module("tf_keras")

    x = tf_keras.Input((4,), name="x")
    model = tf_keras.Model(x, tf_keras.layers.Dense(2, name="y")(tf_keras.layers.BatchNormalization()(x)))
    path = _folder()
    model.save(path, save_format="tf")
    return path


@kind(named(ids=integers(20, 6)), needs=("tf_keras",))
def keras2_recurrent() -> Any:
    """SavedModel written by Keras 2, of an LSTM."""
    tf_keras = importlib.import_module("tf_keras")

    ids = tf_keras.Input((6,), dtype="int32", name="ids")
    h = tf_keras.layers.LSTM(4)(tf_keras.layers.Embedding(20, 3, mask_zero=True)(ids))
    path = _folder()
    tf_keras.Model(ids, tf_keras.layers.Dense(2, name="y")(h)).save(path, save_format="tf")
    return path
