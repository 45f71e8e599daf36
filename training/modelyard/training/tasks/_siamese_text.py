"""The task ``siamese_text``: twin LSTMs that tell whether two texts name the same thing.

Source: Mueller and Thyagarajan, "Siamese Recurrent Architectures for Learning Sentence Similarity", AAAI 2016; on
characters instead of words, as in Neculoiu, Versteegh and Rotaru, "Learning Text Similarity with Siamese Recurrent
Networks", 2016. One embedding and one LSTM, applied to both texts of a pair, make ``h_a`` and ``h_b``, the state after
the last character; the similarity is ``exp(-sum |h_a - h_b|)``, from 0 to 1, and the loss its squared error against 1
for the same title and 0 for two titles. Adam.

The texts are job titles and other spellings of them, all made by rule: abbreviations, the role first, misspellings.
Half of the pairs of two titles have the same words in another order, as "sales training manager" and "training sales
manager": a mean of the characters' vectors in place of the LSTM takes them for the same. Characters are bytes of UTF-8,
int32 ``[B, 40]``, filled with 0: what strings are to a program that has no vocabulary. (In raw strings ONNX could take
them apart, TFLite could not.)

Measured: accuracy on pairs of titles that were in no training pair, where a similarity above 0.5 says the same. Image:
the vectors of spellings of eight such titles, in the plane of their principal components.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, SignatureFunction, TensorSpec, VerificationData
from modelyard.errors import ConfigurationError
from modelyard.training.data import Arrays
from modelyard.training.plots import save_embedding
from modelyard.training.run import TrainResult
from modelyard.training.tasks.inputs import title_pairs, title_spellings
from modelyard.training.user import Task, average_loss, minimize

LENGTH = 40
_PAIRS, _TEST_PAIRS = 20_000, 2_000
#: Titles, and spellings of each.
_DRAWN = (8, 60)


class SiameseTextTask(Task):
    """Tells whether two spellings are of the same title.

    Args:
        pairs: How many pairs to train on.
        embedding: Numbers in the vector of a character.
        units: Numbers in the state of the LSTM, the vector of a text.
        learning_rate: Step size of Adam.

    Raises:
        ConfigurationError: There is no pair to train on.
    """

    name = "siamese_text"
    recipe = {"batch_size": 64, "epochs": 6}

    def __init__(
        self, *, pairs: int = _PAIRS, embedding: int = 16, units: int = 50, learning_rate: float = 1e-2
    ) -> None:
        if pairs < 1:
            raise ConfigurationError(f"pairs is {pairs}; expected at least one to train on.")
        self._pairs = pairs
        self._embedding = embedding
        self._units = units
        self._learning_rate = learning_rate

    def build(self) -> None:
        """Creates the encoder and its optimizer."""
        self.encoder = keras.Sequential(
            [
                keras.Input((LENGTH,), dtype="int32"),
                # The LSTM stops at the end of the text.
                keras.layers.Embedding(256, self._embedding, mask_zero=True),
                keras.layers.LSTM(self._units),
            ],
            name="encoder",
        )
        self.optimizer = keras.optimizers.Adam(self._learning_rate)

    @cached_property
    def train(self) -> Arrays:
        """``(first, second, same)``: int32 ``[B, 40]`` twice, float32 ``[B]``."""
        return _source(self._pairs, test=False)

    @cached_property
    def test(self) -> Arrays:
        """Pairs of other titles."""
        return _source(_TEST_PAIRS, test=True)

    def train_step(self, batch: tuple[tf.Tensor, ...]) -> Mapping[str, tf.Tensor]:
        """A step of Adam on the squared error of the similarity; ``loss`` and ``accuracy`` of each pair, ``[B]``."""
        first, second, same = batch
        with tf.GradientTape() as tape:
            similarity = self._similarity(first, second, training=self.training)
            losses = tf.square(similarity - same)
            loss = average_loss(losses)
        minimize(loss, self.encoder.trainable_variables, optimizer=self.optimizer, tape=tape)
        right = tf.cast(similarity > 0.5, tf.float32) == same
        return {"loss": losses, "accuracy": tf.cast(right, tf.float32)}

    def signatures(self) -> Mapping[str, SignatureFunction]:
        """``embed``: a text to its vector; ``similarity``, the default too: two texts to similarity and verdict."""
        similarity = _takes(self._compare, "first", "second")
        embed = _takes(lambda text: {"embedding": self.encoder(text, training=False)}, "text")
        return {"similarity": similarity, "embed": embed, DEFAULT_SIGNATURE: similarity}

    def verification_data(self, count: int) -> VerificationData:
        """The first test pairs.

        Raises:
            ConfigurationError: ``count`` is below 1.
        """
        if count < 1:
            raise ConfigurationError(f"count is {count}; expected at least one example to verify with.")
        first, second, _ = title_pairs(count, test=True)
        pairs = {"first": encode_texts(first), "second": encode_texts(second)}
        return VerificationData(
            inputs={"embed": {"text": pairs["first"]}, "similarity": pairs, DEFAULT_SIGNATURE: pairs},
            description=f"{count} test pairs; {self.data_description()}",
        )

    def draw(self, result: TrainResult, folder: Path) -> list[Path]:
        """Draws the vectors of other spellings of eight titles in the plane, coloured by title."""
        path = folder / "embedding.png"
        texts, titles, names = title_spellings(*_DRAWN)
        vectors = np.asarray(self.encoder(encode_texts(texts), training=False))
        save_embedding(vectors, titles, path, title="Spellings", names=names)
        return [*super().draw(result, folder), path]

    def data_description(self) -> str:
        """Where the texts came from."""
        return f"{self._pairs:,} + {_TEST_PAIRS:,} pairs of job titles made by rule"

    def _similarity(self, first: tf.Tensor, second: tf.Tensor, *, training: bool) -> tf.Tensor:
        # At once: an LSTM takes its steps one after another, whatever the batch.
        a, b = tf.split(self.encoder(tf.concat([first, second], axis=0), training=training), 2)
        return tf.exp(-tf.reduce_sum(tf.abs(a - b), axis=-1))

    def _compare(self, first: tf.Tensor, second: tf.Tensor) -> Mapping[str, tf.Tensor]:
        similarity = self._similarity(first, second, training=False)
        return {"similarity": similarity, "same": similarity > 0.5}


def encode_texts(texts: Sequence[str] | npt.NDArray[np.object_]) -> npt.NDArray[np.int32]:
    """Texts as the signatures take them: the first 40 bytes of each, int32 ``[N, 40]``, filled with 0."""
    encoded = b"".join(text.encode()[:LENGTH].ljust(LENGTH, b"\0") for text in texts)
    return np.frombuffer(encoded, np.uint8).reshape(len(texts), LENGTH).astype(np.int32)


def _source(count: int, *, test: bool) -> Arrays:
    first, second, same = title_pairs(count, test=test)
    return Arrays((encode_texts(first), encode_texts(second), same))


def _takes(function: Any, *names: str) -> SignatureFunction:
    inputs = tuple(TensorSpec(name=name, dtype="int32", shape=(-1, LENGTH)) for name in names)
    return SignatureFunction(inputs=inputs, function=function)
