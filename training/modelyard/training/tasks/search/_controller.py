"""The controller of ``nas``, and what is known of the children so far."""

from __future__ import annotations

import keras
import tensorflow as tf

_UNITS = 32
#: Weight of the newest rewards in their moving average.
_NEWEST = 0.1
#: Children that are kept, the first ones.
_KEPT = 10_000
#: The reward of a child that was not trained yet.
_NONE = -1.0


class Controller(keras.layers.Layer):
    """Makes one choice after the other; at the start each option is as likely as any other.

    Args:
        options: How many there are, of each choice.
    """

    def __init__(self, options: tuple[int, ...]) -> None:
        super().__init__(name="controller", dtype="float32")
        self.options = options
        self.cell = keras.layers.LSTMCell(_UNITS)
        self.embeddings = [keras.layers.Embedding(count, _UNITS) for count in options[:-1]]
        self.heads = [keras.layers.Dense(count, kernel_initializer="zeros") for count in options]
        self.cell.build((None, _UNITS))
        for layer in (*self.embeddings, *self.heads):
            layer.build((None, _UNITS) if layer in self.heads else (None,))
        self.built = True

    def call(self, draws: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Samples children by uniform draws, float32 ``[M, choices]``.

        Returns the choices, int32, and of each its log probability and its entropy in nats, all ``[M, choices]``.
        """
        state = [tf.zeros([tf.shape(draws)[0], _UNITS])] * 2
        x, made = state[0], []
        for number, head in enumerate(self.heads):
            output, state = self.cell(x, state)
            log_all = tf.nn.log_softmax(head(output))
            # The first option whose cumulated probability exceeds the draw.
            passed = tf.cumsum(tf.exp(log_all), axis=1) <= draws[:, number : number + 1]
            choice = tf.minimum(tf.reduce_sum(tf.cast(passed, tf.int32), axis=1), self.options[number] - 1)
            entropy = -tf.reduce_sum(tf.exp(log_all) * log_all, axis=1)
            made.append((choice, tf.gather(log_all, choice, batch_dims=1), entropy))
            if number < len(self.embeddings):
                x = self.embeddings[number](choice)
        choices, log_probabilities, entropies = (tf.stack(parts, axis=1) for parts in zip(*made, strict=True))
        return choices, log_probabilities, entropies


class SearchLog(tf.Module):
    """Rewards and choices of the children by their numbers, the controller's and, beside each, one drawn at random.

    Each child has a row of its own: workers that finish at the same time do not meet.

    Args:
        choices: How many a child is made of.
        shapes: Of the weights of the best child.

    Attributes:
        seed: Of the run, int64.
        rewards: ``[children, 2]``, float32; -1 for those that are not trained yet.
        choices: ``[children, 2, choices]``, int32.
        weights: Of the child ``weights_of``; zeros for -1, none.
        weights_of: Number of a child, int64.
    """

    def __init__(self, choices: int, shapes: list[tuple[int, ...]]) -> None:
        super().__init__(name="search")
        self.seed = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.baseline = tf.Variable(_NONE, trainable=False)
        self.rewards = tf.Variable(tf.fill([_KEPT, 2], _NONE), trainable=False)
        self.choices = tf.Variable(tf.zeros([_KEPT, 2, choices], tf.int32), trainable=False)
        self.weights = [tf.Variable(tf.zeros(shape), trainable=False) for shape in shapes]
        self.weights_of = tf.Variable(-1, dtype=tf.int64, trainable=False)

    def expected(self, reward: tf.Tensor) -> tf.Tensor:
        """The moving average of rewards before these; then it takes them in."""
        mean = tf.reduce_mean(reward)
        before = tf.where(self.baseline == _NONE, mean, self.baseline)
        self.baseline.assign(before + _NEWEST * (mean - before))
        return before

    def remember(self, seeds: tf.Tensor, rewards: tf.Tensor, choices: tf.Tensor) -> None:
        """Notes children ``[2 M, ...]``, the controller's and then the random ones, by their seeds ``[M, 2]``."""
        self.seed.assign(seeds[0, 0])
        kept = seeds[:, 1] < _KEPT
        rows = tf.boolean_mask(seeds[:, 1], kept)[:, tf.newaxis]
        for variable, values in ((self.rewards, rewards), (self.choices, choices)):
            both = tf.stack(tf.split(values, 2), axis=1)
            variable.scatter_nd_update(rows, tf.boolean_mask(both, kept))

    def best(self, *, at_random: bool = False) -> tf.Tensor:
        """The number of the best child, int64."""
        return tf.argmax(self.rewards[:, int(at_random)])
