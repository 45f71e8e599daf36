from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from modelyard.artifact import ExampleDecode, FeatureSpec, ImageDecode, Signature, TensorSpec
from modelyard.errors import ConfigurationError
from modelyard.export import load_data
from modelyard.export.sources import name_arrays

X = TensorSpec(name="x", dtype="float32", shape=(-1, 2))
N = TensorSpec(name="n", dtype="int64", shape=(-1,))
WORD = TensorSpec(name="word", dtype="string", shape=(-1,))


def signature(*inputs: TensorSpec, **fields: Any) -> Signature:
    return Signature(inputs=inputs, outputs=(X,), compute="f", **fields)


TWO = {"two": signature(X, N), "one": signature(X)}


def test_archives(tmp_path: Path) -> None:
    x, other = np.arange(8, dtype=np.float32).reshape(4, 2), np.ones((4, 2), np.float32)
    arrays: dict[str, Any] = {"x": x, "one/x": other, "n": np.arange(4), "labels": np.arange(4, dtype=np.int32)}
    np.savez(tmp_path / "a.npz", **arrays)
    data = load_data(tmp_path / "a.npz", TWO, limit=3)
    np.testing.assert_array_equal(data.inputs["two"]["x"], x[:3])
    np.testing.assert_array_equal(data.inputs["one"]["x"], other[:3])
    assert data.inputs["two"]["n"].tolist() == [0, 1, 2]
    assert data.labels is not None and data.labels.dtype == np.int64 and data.labels.tolist() == [0, 1, 2]
    assert data.description == "a.npz"


@pytest.mark.parametrize("values", [["a", "né"], [b"a", "né".encode()]])
def test_strings_become_bytes(tmp_path: Path, values: list[Any]) -> None:
    np.save(tmp_path / "a.npy", np.array(values))
    data = load_data(tmp_path / "a.npy", {"f": signature(WORD)}, limit=9)
    assert data.inputs["f"]["word"].tolist() == [b"a", "né".encode()]


def test_images(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 6, 5, 3), np.uint8)
    for index, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{index}.png")
    (tmp_path / "notes.txt").write_text("no image")
    data = load_data(
        tmp_path,
        {
            "bytes": signature(WORD, decode=ImageDecode(input="word"), preprocess="p"),
            "floats": signature(TensorSpec(name="image", dtype="float32", shape=(-1, 6, 5, 3))),
            "free": signature(TensorSpec(name="image", dtype="uint8", shape=(-1, -1, 5, 3))),
            "small": signature(TensorSpec(name="image", dtype="uint8", shape=(-1, 2, 2, 1))),
            "examples": signature(
                WORD, decode=ExampleDecode(input="word", features=(FeatureSpec(name="x", dtype="int64"),))
            ),
        },
        limit=9,
    )
    assert set(data.inputs) == {"bytes", "floats", "free", "small"}
    assert data.inputs["bytes"]["word"][1] == (tmp_path / "1.png").read_bytes()
    np.testing.assert_allclose(data.inputs["floats"]["image"], pixels / np.float32(255), rtol=1e-6)
    assert data.inputs["free"]["image"].shape == (3, 128, 5, 3)
    assert data.inputs["small"]["image"].shape == (3, 2, 2, 1) and data.inputs["small"]["image"].dtype == np.uint8


def test_records(tmp_path: Path) -> None:
    messages = []
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for index in range(4):
            message = tf.train.Example()
            message.features.feature["x"].float_list.value.extend([index, 0.5])
            message.features.feature["n"].int64_list.value.append(index)
            messages.append(message.SerializeToString())
            writer.write(messages[-1])
    data = load_data(tmp_path / "a.tfrecord", {**TWO, "f": signature(WORD)}, limit=3)
    assert data.inputs["f"]["word"].tolist() == messages[:3]
    assert data.inputs["two"]["x"].tolist() == [[0.0, 0.5], [1.0, 0.5], [2.0, 0.5]]
    assert data.inputs["two"]["n"].tolist() == [0, 1, 2]
    with pytest.raises(ConfigurationError, match="does not fit signature 'f'.*Feature: q"):
        load_data(tmp_path / "a.tfrecord", {"f": signature(TensorSpec(name="q", dtype="int64", shape=(-1,)))}, limit=3)


def test_random_numbers_are_the_same_every_time() -> None:
    specs = [TensorSpec(name=name, dtype=name, shape=(-1, -1, 2)) for name in ("float32", "int8", "bool", "uint64")]
    first, second = (load_data("random", {"f": signature(*specs)}, limit=5).inputs["f"] for _ in range(2))
    for name, values in first.items():
        assert values.dtype == np.dtype(name) and values.shape == (5, 12, 2)
        assert len(np.unique(values)) > 1
        np.testing.assert_array_equal(values, second[name])


def test_random_integers_are_from_the_widest_range_that_is_accepted() -> None:
    whole = {"f": signature(*(TensorSpec(name=name, dtype=name, shape=(-1,)) for name in ("int32", "uint8")))}

    def limits(score: Any) -> dict[str, tuple[int, int]]:
        inputs = load_data("random", whole, limit=5000, score=score).inputs["f"]
        return {name: (int(values.min()), int(values.max())) for name, values in inputs.items()}

    assert limits(lambda *_: 1) == {"int32": (-999, 999), "uint8": (0, 255)}
    assert limits(lambda _, inputs: inputs["int32"].min() >= 0 and inputs["int32"].max() < 50)["int32"] == (0, 9)
    # As of a model that knows 100 classes, and has one answer for all other numbers.
    assert limits(lambda _, inputs: len(set(inputs["int32"].clip(-1, 100).tolist())))["int32"] == (0, 999)
    assert limits(lambda *_: 0) == {"int32": (0, 1), "uint8": (0, 1)}


def damaged(content: bytes) -> bytes:
    return content[:100] + bytes(each ^ 0x5A for each in content[100:1500]) + content[1500:]


def pickled(folder: Path) -> Path:
    np.save(folder / "a.npy", np.array([{}], object), allow_pickle=True)
    return folder / "a.npy"


def archive(folder: Path, change: Callable[[bytes], bytes], **arrays: Any) -> Path:
    """An ``.npz`` file that is not as it was written."""
    np.savez_compressed(folder / "a.npz", **(arrays or {"x": np.random.default_rng(0).normal(size=(300, 2))}))
    (folder / "a.npz").write_bytes(change((folder / "a.npz").read_bytes()))
    return folder / "a.npz"


def text(folder: Path, name: str) -> Path:
    (folder / name).write_text("not what it says, but long enough to be read")
    return folder / name


@pytest.mark.parametrize(
    ("make", "inputs", "message"),
    [
        (pickled, X, "cannot be read: .*pickle|cannot be read: Object arrays"),
        (lambda folder: folder / "absent.npy", X, r"absent\.npy does not exist\."),
        (lambda folder: text(folder, "a.csv"), X, "is of no known kind; expected an .npz"),
        (lambda folder: text(folder, "a.npz"), X, "cannot be read"),
        (lambda folder: archive(folder, lambda content: content[:-30]), X, "cannot be read: File is not a zip file"),
        (lambda folder: archive(folder, lambda content: b""), X, "cannot be read: No data left in file"),
        (lambda folder: archive(folder, damaged), X, "cannot be read"),
        (lambda folder: archive(folder, bytes, x=np.float32(1)), X, "something else than arrays with a row for each"),
        (lambda folder: text(folder, "a.tfrecord"), X, "is no TFRecord file"),
        (lambda folder: folder, X, "holds no images"),
        (lambda folder: "random", WORD, "'word' of signature 'f' is string; random examples are numbers"),
    ],
)
def test_data_that_cannot_be_used(make: Any, inputs: TensorSpec, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_data(make(tmp_path), {"f": signature(inputs)}, limit=3)


@pytest.mark.parametrize("limit", [0, -1, "5", 2.5])
def test_a_number_of_examples_that_is_none(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"number of examples \(--examples\) is .*; expected a whole"):
        load_data("random", {"f": signature(X)}, limit=limit)


def test_arrays_are_known_by_what_they_are(tmp_path: Path) -> None:
    x = np.ones((4, 2), np.float32)
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, x)
    np.testing.assert_array_equal(load_data(tmp_path / "a.npz", {"f": signature(X)}, limit=3).inputs["f"]["x"], x[:3])


@pytest.mark.parametrize("arrays", [{"y": [0.0]}, {"x": [[0.0, 1.0]], "y": [0.0]}])
def test_arrays_for_nothing(arrays: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    message = r"has \['y'\]; expected .* some of 'x' \(float32 \[-1, 2\]\), 'n' \(int64 \[-1\]\), and 'labels'"
    with pytest.raises(ConfigurationError, match=message):
        load_data(tmp_path / "a.npz", TWO, limit=3)
    with pytest.raises(ConfigurationError, match=message):
        name_arrays(arrays, TWO)


@pytest.mark.parametrize("wrong", [None, 5, np.float32(5), np.array(5), iter([5])])
def test_what_is_no_array_is_named(wrong: Any) -> None:
    for arrays in ({"x": wrong}, {"x": np.ones((4, 2)), "labels": wrong}):
        with pytest.raises(ConfigurationError, match=r"The data's '(x|labels)' is a \w+; expected an array, or a list"):
            name_arrays(arrays, TWO)


def test_labels_of_examples_of_several_sizes() -> None:
    data = name_arrays({"x": [[1.0], [1.0, 2.0], [3.0]], "labels": [7, 8, 9]}, {"f": signature(X)})
    assert data.labels is not None and data.labels.tolist() == [7, 9]
    assert [each.keys() for each in (data.inputs["f"], *data.others["f"])] == [{"x"}, {"x"}]


def test_an_input_that_is_called_labels() -> None:
    data = name_arrays(
        {"labels": np.arange(3)}, {"f": signature(TensorSpec(name="labels", dtype="int64", shape=(-1,)))}
    )
    assert data.labels is None and data.inputs["f"]["labels"].tolist() == [0, 1, 2]


def test_images_that_do_not_fit(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    with pytest.raises(ConfigurationError, match="b.png: 8 bytes are not a complete image"):
        load_data(tmp_path, {"f": signature(TensorSpec(name="i", dtype="uint8", shape=(-1, 2, 2, 3)))}, limit=3)
