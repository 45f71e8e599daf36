"""A copy of a checkpoint's variables in host memory, to write while training goes on."""

from __future__ import annotations

import keras
import tensorflow as tf


class Mirror:
    """The same tree of objects as a checkpoint's, with variables of its own as leaves."""

    def __init__(self, root: tf.train.Checkpoint) -> None:
        self._view = tf.train.TrackableView(root)
        self._copies: dict[int, tf.Module | tf.Variable] = {}
        self._pairs: list[tuple[tf.Variable, tf.Variable]] = []
        children = self._view.children(root)
        self._checkpoint = tf.train.Checkpoint(**{name: self._clone(child) for name, child in children.items()})

    def copy(self) -> None:
        """Takes over the present values."""
        for source, target in self._pairs:
            target.assign(tf.convert_to_tensor(source))

    def write(self, prefix: str) -> None:
        """Writes what was copied, as ``tf.train.Checkpoint.write`` does."""
        self._checkpoint.write(prefix)

    def _clone(self, node: object) -> tf.Module | tf.Variable:
        if id(node) in self._copies:
            return self._copies[id(node)]
        if isinstance(node, tf.Variable | keras.Variable):
            with tf.device("CPU"):
                copy: tf.Variable = tf.Variable(tf.convert_to_tensor(node), trainable=False)
            self._pairs.append((node, copy))
            self._copies[id(node)] = copy
            return copy
        copy = self._copies[id(node)] = tf.Module()
        for name, child in self._view.children(node).items():
            # tf.Module wants to know its name by a name of its own.
            setattr(copy, name, self._clone(child))
        return copy
