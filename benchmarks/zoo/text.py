"""Raw text and strings."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from benchmarks.zoo._kind import floats, kind, module, spec, texts

layers = keras.layers
PHRASES = ("good film", "a bad film!", "Good, good actors", "never again", "the plot was BAD", "")


def _vectorization(**settings: Any) -> Any:
    split = layers.TextVectorization(max_tokens=12, **settings)
    split.adapt(list(PHRASES))
    return split


@kind(texts(*PHRASES))
def text_classifier() -> Any:
    """TextVectorization, embedding, average: a sentiment classifier."""
    text = keras.Input((), dtype="string", name="text")
    ids = _vectorization(output_sequence_length=5)(text)
    return keras.Model(text, layers.Dense(2)(layers.GlobalAveragePooling1D()(layers.Embedding(12, 4)(ids))))


@kind(texts(*PHRASES[:5]))
def text_recurrent() -> Any:
    """TextVectorization of free length, embedding with a mask, GRU."""
    text = keras.Input((), dtype="string", name="text")
    return keras.Model(
        text, layers.Dense(2)(layers.GRU(4)(layers.Embedding(12, 4, mask_zero=True)(_vectorization()(text))))
    )


@kind(texts(*PHRASES))
def text_tfidf() -> Any:
    """TextVectorization to TF-IDF."""
    text = keras.Input((), dtype="string", name="text")
    return keras.Model(text, layers.Dense(2)(_vectorization(output_mode="tf_idf")(text)))


@kind(texts(*PHRASES))
def text_characters() -> Any:
    """TextVectorization of characters, convolution."""
    text = keras.Input((), dtype="string", name="text")
    ids = _vectorization(split="character", output_sequence_length=12)(text)
    h = layers.GlobalMaxPooling1D()(layers.Conv1D(4, 3)(layers.Embedding(12, 4)(ids)))
    return keras.Model(text, layers.Dense(2)(h))


@kind(floats(3))
def label_output() -> Any:
    """Class names as output, beside their scores."""
    names = tf.constant(["cat", "dog", "emu"])
    return module(lambda x: {"label": tf.gather(names, tf.argmax(x, 1)), "score": tf.nn.softmax(x)}, spec(None, 3))


@kind(texts("Ab", "CDe", "", "xyz"))
def string_operations() -> Any:
    """Length and lower case of strings."""
    return module(
        lambda text: {"length": tf.strings.length(text), "lower": tf.strings.lower(text)}, spec(None, dtype=tf.string)
    )


@kind(texts("a-1", "b-22", "c-333"))
def string_numbers() -> Any:
    """Numbers cut out of strings."""
    return module(
        lambda text: tf.strings.to_number(tf.strings.regex_replace(text, "[^0-9]", "")), spec(None, dtype=tf.string)
    )


@kind(texts(*PHRASES[:5]))
def ragged_words() -> Any:
    """Words split into a ragged tensor, counted and padded."""

    def serve(text: Any) -> Any:
        words = tf.strings.split(text)
        return {"count": words.row_lengths(), "words": words.to_tensor("")}

    return module(serve, spec(None, dtype=tf.string))
