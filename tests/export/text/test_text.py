"""Text in ONNX: what onnxruntime makes of real text is what TensorFlow makes of it, to the last number."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf

from modelyard.errors import ConversionError
from modelyard.export.formats import convert_function, freeze
from modelyard.export.sources import check_graphs

LAYERS = keras.layers
CORPUS = [
    "Hello, World! it's me",
    "the QUICK brown fox jumps over the lazy dog: the end",
    "  Two  spaces,\tand tabs\nand\vall\fthat\r",
    "ÄÖ É naïve café — 日本語 😀😀😀 İstanbul ẞ",
    "don't!!! (well-known) <br /> tags <b>bold</b>; ¿qué?",
    "a,b,,c 0123 4.5 \x00 \x1c [x] \\ ^ `q`",
    "",
    " \t ",
    "!!! ???",
    "word " * 300,
]


def random_texts(count: int) -> list[str]:
    rng = np.random.default_rng(7)
    alphabet = [*"aAbBzZ", *"  \t\n", *".,!?'<>/-", "br", "ä", "É", "ß", "日", "😀", "the ", "fox "]
    return ["".join(rng.choice(alphabet, rng.integers(0, 40))) for _ in range(count)]


TEXTS = np.array([text.encode() for text in [*CORPUS, *random_texts(60)]], object)

Outputs = Callable[[Any], dict[str, Any]]


def convert(outputs: Outputs, spec: Any) -> tuple[Any, onnxruntime.InferenceSession]:
    traced = tf.function(outputs, input_signature=[spec])
    model = convert_function(freeze(traced, target="onnx"), opset=18)
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    content = model.SerializeToString()
    return traced, onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def check(outputs: Outputs, values: Any) -> None:
    """Compares all outputs: all values at once, one, what is empty alone, no text at all."""
    kind = tf.string if values.dtype == object else tf.as_dtype(values.dtype)
    traced, session = convert(outputs, tf.TensorSpec([None, *values.shape[1:]], kind, name="x"))
    names = [each.name for each in session.get_outputs()]
    parts = [values, values[:1], values[3:4], values[6:8]]
    for rows in [*parts, values[:0]] if values.dtype == object else parts:
        expected = traced(tf.constant(rows.tolist(), kind, rows.shape))
        feed = np.vectorize(bytes.decode, otypes=[object])(rows) if values.dtype == object else rows
        found = dict(zip(names, session.run(names, {"x": feed}), strict=True))
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            wanted, got = tensor.numpy(), found[name]
            if got.dtype == object:
                got = np.vectorize(str.encode, otypes=[object])(got)
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), name
            np.testing.assert_array_equal(got, wanted, err_msg=name)


def test_operators_over_strings() -> None:
    replace, strings = tf.strings.regex_replace, tf.strings

    def outputs(x: Any) -> dict[str, Any]:
        words = strings.split(x)
        return {
            "lower": strings.lower(x),
            "upper": strings.upper(tf.reshape(x, [-1, 1])),
            "strip": strings.strip(x),
            "removed": replace(x, r'[!"#$%&()\*\+,-\./:;<=>?@\[\\\]^_`{|}~\']', ""),
            "kept": replace(x, "[^a-zA-Z ]", ""),
            "spaced": replace(x, "[.?!,¿]", r" \0 "),
            "literal": replace(x, "<br />", " "),
            "tags": replace(x, "<[^>]+>", ""),
            "shortest": replace(replace(x, "<.*?>", ""), r"\[.+?\]", "_"),
            "blanks": replace(x, r"\s+", " "),
            "either": replace(x, "(?i)the|fo+x|É", "[X]"),
            "classes": replace(x, r"[[:punct:]]+|\pL\d", "_"),
            "matches": strings.regex_full_match(x, "(?i).*the.*"),
            "equal": tf.equal(x, "!!! ???"),
            "unequal": tf.not_equal(x, strings.lower(x)),
            "joined": strings.join([x, "<>", strings.as_string(strings.split(x, ",").row_lengths())], separator="-"),
            "words": words.to_tensor("none"),
            "two": words.to_tensor(shape=[None, 2]),
            "columns": strings.split(x, ",").to_tensor("none"),
            "tagged": strings.split(x, "<br />").to_tensor("none"),
            "characters": strings.unicode_split(x, "UTF-8").to_tensor("none"),
            "grams": strings.ngrams(words, (1, 3), separator="_").to_tensor("none", shape=[None, 9]),
            "lengths": words.row_lengths(),
        }

    check(outputs, TEXTS)


def vectorize(**options: Any) -> Any:
    layer = LAYERS.TextVectorization(**options)
    layer.adapt([text for text in CORPUS[:5] if text])
    return layer


def test_text_vectorization() -> None:
    layers = {
        "int": vectorize(),
        "padded": vectorize(output_sequence_length=6, max_tokens=20),
        "characters": vectorize(split="character", standardize="lower", output_sequence_length=12),
        "whole": vectorize(split=None, standardize="strip_punctuation"),
        "grams": vectorize(ngrams=2, output_sequence_length=8),
        "multi_hot": vectorize(output_mode="multi_hot", standardize=None),
        "count": vectorize(output_mode="count", max_tokens=60, pad_to_max_tokens=True),
        "tf_idf": vectorize(output_mode="tf_idf", ngrams=(1, 2)),
    }
    check(lambda x: {name: layer(x) for name, layer in layers.items()}, TEXTS[:, None])


def test_vocabularies_of_strings() -> None:
    words = ["a", "ä", "the", "😀"]
    texts = np.array([["a", "ä", "the"], ["", "A", "a"], ["😀", "nothing", "😀"]] * 3, object)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(words, [0.5, 1.5, 2.5, 3.5]), -1.0)
    layers = {mode: LAYERS.StringLookup(vocabulary=words, output_mode=mode) for mode in ("int", "multi_hot", "count")}
    layers["tf_idf"] = LAYERS.StringLookup(vocabulary=words, output_mode="tf_idf", idf_weights=[0.1, 0.2, 0.3, 0.4])
    layers["masked"] = LAYERS.StringLookup(vocabulary=words, mask_token="")
    one_hot = LAYERS.StringLookup(vocabulary=words, output_mode="one_hot")

    def outputs(x: Any) -> dict[str, Any]:
        found = {name: layer(x) for name, layer in layers.items()}
        return {**found, "one_hot": one_hot(x[:, :1]), "table": table.lookup(x)}

    check(outputs, np.vectorize(str.encode, otypes=[object])(texts))


def test_numbers_as_categories() -> None:
    edges = [0.0, 2.5]
    lookups = {
        "one": LAYERS.IntegerLookup(vocabulary=[1, 5, 9]),
        "several": LAYERS.IntegerLookup(vocabulary=[1, 5, 9], num_oov_indices=3),
        "multi_hot": LAYERS.IntegerLookup(vocabulary=[1, 5], mask_token=0, output_mode="multi_hot"),
        "count": LAYERS.IntegerLookup(vocabulary=[1, 5], mask_token=0, output_mode="count"),
    }
    categories = {
        "label": LAYERS.StringLookup(vocabulary=["x", "y", "z"], invert=True),
        "back": LAYERS.IntegerLookup(vocabulary=[7, 8], invert=True),
        "encoded": LAYERS.CategoryEncoding(10, output_mode="count"),
    }
    measures = {
        "bucket": LAYERS.Discretization(bin_boundaries=edges),
        "buckets": LAYERS.Discretization(bin_boundaries=edges, output_mode="multi_hot"),
        "normal": LAYERS.Normalization(mean=[2.0, 0.5, -1.0], variance=[4.0, 0.25, 1.0]),
    }
    hot, crossed = LAYERS.CategoryEncoding(10, output_mode="one_hot"), LAYERS.HashedCrossing(1000)
    crossed_hot = LAYERS.HashedCrossing(7, output_mode="one_hot")

    def outputs(x: Any) -> dict[str, Any]:
        within, floats = tf.clip_by_value(x, 0, 9), tf.cast(x, tf.float32)
        return {
            **{name: layer(x) for name, layer in lookups.items()},
            **{name: layer(within) for name, layer in categories.items()},
            **{name: layer(floats) for name, layer in measures.items()},
            "hot": hot(within[:, :1]),
            "crossed": crossed([x[:, :1], x[:, 1:2]]),
            "crossed_hot": crossed_hot([x[:, 1:2], x[:, :1]]),
        }

    check(outputs, np.array([[1, 5, 9], [0, 5, 5], [-7, 2, 1]] * 3))


def test_what_is_in_no_vocabulary_is_refused_as_before() -> None:
    layer = LAYERS.StringLookup(vocabulary=["a", "b"], num_oov_indices=0)
    rows = np.array([[b"b"], [b"a"]] * 5, object)
    check(lambda x: {"y": layer(x)}, rows)
    traced, session = convert(lambda x: {"y": layer(x)}, tf.TensorSpec([None, 1], tf.string, name="x"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="should be in vocabulary"):
        traced(tf.constant([["c"]]))
    with pytest.raises(Exception, match="in_vocabulary.*out of data bounds"):
        session.run(None, {"x": np.array([["c"]], object)})


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda x: tf.strings.to_hash_bucket(x, 7), "StringToHashBucket, for which ONNX has no operators"),
    (lambda x: tf.strings.substr(x, 0, 1), "Substr"),
    (lambda x: tf.strings.regex_replace(x, "^a", "b"), "regular expression '.a', which looks at what is beside"),
    (lambda x: tf.strings.regex_replace(x, r"a\b", "b"), "which looks at what is beside"),
    (lambda x: tf.strings.regex_replace(x, "a*", "b"), "which matches nothing, too"),
    (lambda x: tf.strings.regex_replace(x, "<.*?>b", "b"), "does not always take the longest match"),
    (lambda x: tf.strings.regex_replace(x, "(?i)dog|cat|category", "b"), "does not always take the longest match"),
]


def test_hashes_are_tensorflow_s_to_the_last_bit() -> None:
    """No bit is lost, and every branch of FarmHash has its lengths."""
    rng = np.random.default_rng(3)
    alphabet = [*"aZ 09", "\x00", "\x7f", "\x80", "ä", "\u07ff", "\u0800", "日", "\uffff", "😀", "\U0010ffff"]
    lengths = [*range(34), *range(60, 70), *rng.integers(70, 700, 20)]
    texts = ["".join(rng.choice(alphabet, size)) for size in lengths] + ["x" * size for size in range(140)]
    salted, crossed = LAYERS.Hashing(2**31 - 1, salt=[133, 137]), LAYERS.HashedCrossing(10**9)
    lookup = LAYERS.StringLookup(vocabulary=["a"], num_oov_indices=5)

    def outputs(x: Any) -> dict[str, Any]:
        return {
            "fast": tf.strings.to_hash_bucket_fast(x, 2**63 - 1),
            "strong": tf.strings.to_hash_bucket_strong(x, 2**63 - 1, [2**63 - 5, -3]),
            "salted": salted(x),
            # Of no rows, TensorFlow makes no columns.
            "crossed": tf.reshape(crossed([x, x]), [-1]),
            "lookup": lookup(x),
            "bytes": tf.strings.length(x),
            "characters": tf.strings.length(x, unit="UTF8_CHAR"),
        }

    check(outputs, np.array([[each.encode()] for each in [*texts, *(text.decode() for text in TEXTS)]], object))


def test_every_character_has_its_bytes() -> None:
    """All of Unicode, since a character is reached by the inverse of a hash."""
    points = [*range(1, 0xD800), *range(0xE000, 0x110000)]
    texts = np.array(["".join(map(chr, points[begin : begin + 64])) for begin in range(0, len(points), 64)], object)

    def outputs(x: Any) -> dict[str, Any]:
        return {"y": tf.strings.to_hash_bucket_strong(x, 2**63 - 1, [1, 2])}

    traced, session = convert(outputs, tf.TensorSpec([None], tf.string, name="x"))
    for begin in range(0, len(texts), 1000):
        some = texts[begin : begin + 1000]
        expected = traced(tf.constant([each.encode() for each in some]))["y"].numpy()
        np.testing.assert_array_equal(session.run(None, {"x": some})[0], expected)


def test_integers_are_hashed_as_text() -> None:
    hashing = LAYERS.Hashing(10**9)
    check(lambda x: {"y": hashing(x)}, np.array([[0], [-1], [2**31 - 1], [77]]))


@pytest.mark.parametrize(("function", "said"), REFUSED)
def test_what_onnx_cannot_is_told_by_name(function: Callable[[Any], Any], said: str) -> None:
    signature = [tf.TensorSpec([None, 1], tf.string, name="x")]
    graph = tf.function(lambda x: {"y": function(x)}, input_signature=signature)
    with pytest.raises(ConversionError, match=f"^Format onnx, graph 'f': it computes with strings by .*{said}"):
        check_graphs({"f": graph}, "onnx")
    check_graphs({"f": graph}, "saved_model")


UNCONVERTED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda x: tf.strings.lower(x, encoding="utf-8"), "of all of Unicode"),
    (lambda x: tf.strings.split(x, ",", maxsplit=1).to_tensor(), "maxsplit"),
    (lambda x: tf.strings.regex_replace(x, "a", "b", replace_global=False), "the first match only"),
    (lambda x: tf.strings.regex_replace(x, "(a)b", r"\1"), "by parts of what matched"),
    (lambda x: tf.strings.unicode_decode(x, "UTF-8").to_tensor(), "the numbers of characters"),
    (lambda x: tf.strings.unicode_encode(tf.strings.unicode_decode(x, "UTF-8"), "UTF-8"), "joined again"),
    (lambda x: tf.strings.ngrams(tf.strings.split(x), 2, pad_values="-").to_tensor(), "with padding"),
    (lambda x: tf.strings.as_string(tf.strings.to_number(x)), "another form than that of plain integers"),
]


@pytest.mark.parametrize(("format", "name"), [("onnx", "ONNX"), ("tflite", "TFLite")])
def test_files_of_images_are_told_by_name(format: str, name: str) -> None:
    def read(x: Any) -> dict[str, Any]:
        return {"y": tf.map_fn(lambda each: tf.io.decode_png(each, 3), x, fn_output_signature=tf.uint8)}

    graph = tf.function(read, input_signature=[tf.TensorSpec([None], tf.string, name="x")])
    said = f"^Format {format}, graph 'f': it reads images by DecodePng, for which {name} .* EncodedImageFunction"
    with pytest.raises(ConversionError, match=said):
        check_graphs({"f": graph}, format)


@pytest.mark.parametrize(("function", "said"), UNCONVERTED)
def test_a_handler_says_what_it_cannot(
    function: Callable[[Any], Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "tf2onnx")
    with pytest.raises(ValueError, match=said):
        convert(lambda x: {"y": function(x)}, tf.TensorSpec([None], tf.string, name="x"))
