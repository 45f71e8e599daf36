"""Data that a task is given as it is: what it becomes, and that a run on it goes on exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from modelyard.artifact import FeatureSpec
from modelyard.errors import ConfigurationError, DatasetNotFoundError, TrainingError
from modelyard.training import InputRequest, SupervisedTask, Trainer
from modelyard.training.data import Arrays, ImageFolder, ImageOptions, Records, Stream
from tests.support.garments import write_garments

ROWS = 22
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 4)).astype(np.float32)
Y = (X @ RNG.normal(size=(4, 1))).astype(np.float32)


def make_model() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.2), keras.layers.Dense(1)])


def task(train: Any, **options: Any) -> SupervisedTask:
    return SupervisedTask(make_model, **{"loss": "mse", "train": train, "test": (X, Y), "optimizer": "adam", **options})


def slices() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y))


def generated() -> tf.data.Dataset:
    spec = (tf.TensorSpec([4], tf.float32), tf.TensorSpec([1], tf.float32))
    return tf.data.Dataset.from_generator(lambda: zip(X, Y, strict=True), output_signature=spec)


STREAMS: dict[str, Callable[[], Any]] = {
    "arrays": lambda: (X, Y),
    "unseeded shuffle": lambda: slices().shuffle(ROWS).batch(5),
    "unknown length": lambda: slices().filter(lambda x, y: x[0] > -10).shuffle(ROWS),
    "endless": lambda: Stream(slices().shuffle(7).repeat().batch(5), steps_per_epoch=5),
    "generator": lambda: generated().shuffle(9),
    "shuffle in a function": lambda: (
        slices().batch(8).flat_map(lambda x, y: tf.data.Dataset.from_tensor_slices((x, y)).shuffle(8, seed=3))
    ),
}


@pytest.mark.parametrize(
    ("kind", "loop"), [*((kind, "loop") for kind in STREAMS), ("unseeded shuffle", "epoch"), ("generator", "epoch")]
)
def test_a_run_on_any_data_set_goes_on_bit_for_bit(kind: str, loop: str, tmp_path: Path) -> None:
    """It is stopped in its second epoch, and taken up with a new data set as a new process would make one."""
    tf.random.set_seed(None)
    options: dict[str, Any] = {"epochs": 3, "batch_size": 5, "log_every_steps": 1, "loop": loop}
    # Made before the first run sets the seed that all data sets after it would have.
    whole, stopped, again = (task(STREAMS[kind]()) for _ in range(3))
    results = [Trainer(whole, **options).run()]
    stop_at(Trainer(stopped, **options, model_dir=tmp_path), 7)
    results.append(Trainer(again, **options, model_dir=tmp_path).run())
    assert results[0].step == results[1].step == 15
    assert results[1].resumed_from == 7
    for mine, other_value in zip(again.model.variables, whole.model.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(other_value))
    assert results[0].history[-1].train == results[1].history[-1].train
    assert results[1].history[-1].evaluation["loss"] < results[1].history[0].evaluation["loss"]


@pytest.mark.parametrize("more", [{}, {"devices": ("CPU:0",), "prefetch_to_device": True}], ids=["plain", "prefetch"])
def test_a_run_in_steps_on_data_without_an_end_goes_on_bit_for_bit(more: dict[str, Any], tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_steps": 13, "eval_every_steps": 5, "batch_size": 5, "steps_per_loop": 1, **more}
    # Not the seed that the run before this one has set.
    tf.random.set_seed(None)
    whole, stopped, again = (task(slices().shuffle(7).repeat()) for _ in range(3))
    results = [Trainer(whole, **options).run()]
    stop_at(Trainer(stopped, **options, model_dir=tmp_path), 7)
    results.append(Trainer(again, **options, model_dir=tmp_path).run())
    assert results[1].resumed_from == 7
    for mine, other_value in zip(again.model.variables, whole.model.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(other_value))
    numbers = [[(entry.step, entry.epoch, entry.metrics) for entry in result.history] for result in results]
    assert numbers[0] == numbers[1]
    assert [(step, epoch) for step, epoch, _ in numbers[0]] == [(5, 1), (10, 1), (13, 1)]
    assert numbers[0][-1][2]["test_loss"] < numbers[0][0][2]["test_loss"]


def stop_at(trainer: Trainer, step: int) -> None:
    for number, _ in trainer.stream():
        if number == step:
            break


def test_every_example_of_a_stream_is_used_once_in_an_epoch() -> None:
    """The sum of what the steps saw, over an epoch in batches of 5, 5, 5, 5 and 2: those of a data set stay."""

    def step(given: SupervisedTask, batch: Any) -> Any:
        inputs, labels = batch
        return {"loss": given.losses(labels, given.model(inputs)), "seen": tf.reduce_sum(inputs, axis=-1)}

    batches = slices().filter(lambda x, y: True).batch(5)
    for train, batch_size in ((slices().shuffle(ROWS), 5), (batches, 8), ((X, Y), 5)):
        for loop in ("loop", "epoch"):
            result = Trainer(task(train, step=step), epochs=2, batch_size=batch_size, loop=loop).run()
            assert result.step == 10
            assert result.history[1].train["seen"] == pytest.approx(X.sum() / ROWS, rel=1e-5)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            lambda: Stream(slices().repeat().batch(5), steps_per_epoch=2),
            r"has steps_per_epoch=2; expected data with an",
        ),
        (lambda: slices().repeat(), r"is endless; expected data with an end, .* \(--loop epoch\)"),
        (
            lambda: slices().batch(2).concatenate(slices().batch(5)),
            "batches of 2 to 5 examples; expected one size",
        ),
        (lambda: slices().map(lambda x, y: (x + tf.random.uniform([4]), y)), "draws random numbers"),
    ],
)
def test_a_stream_that_memory_cannot_stand_for_is_refused(
    train: Callable[[], Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Trainer(task(train()), max_steps=5, loop="epoch", batch_size=5, model_dir=tmp_path).run()


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            lambda: slices().flat_map(lambda *pair: tf.data.Dataset.from_tensors(pair).shuffle(3)),
            r"draws random numbers \(ShuffleDataset\w*\)",
        ),
        (
            lambda: slices().map(lambda x, y: (x + tf.random.uniform([4]), y)),
            r"draws random numbers \(RandomUniform\)",
        ),
        (lambda: slices().repeat(), "endless.*steps_per_epoch"),
        (lambda: (X, Y[:3]), r"arrays of \[3, 22\] examples"),
        (lambda: (X, [0] * ROWS), "a tuple with 0 in it; expected arrays .*Lists become arrays by np.asarray"),
        (lambda: "photos/train", r"a str with 'photos/train' in it; .*ImageFolder\(path\)"),
        (lambda: X, r"has batches of a SymbolicTensor; expected \(inputs, labels\).*train=\(x, x\)"),
        (lambda: (X, Y, Y, Y), "has batches of 4 parts"),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused(train: Any, message: str, tmp_path: Path) -> None:
    # Runs set the seed that all data sets after them would have.
    tf.random.set_seed(None)
    with pytest.raises(ConfigurationError, match=message):
        Trainer(task(train()), epochs=1, batch_size=5, model_dir=tmp_path).run()


def test_test_data_with_fewer_batches_than_said_is_refused_before_the_run() -> None:
    """Training data begins again, and an evaluation ends."""
    train = Stream(slices().batch(5), steps_per_epoch=6)
    metrics = Trainer(task(train, test=Stream(slices().batch(5), steps_per_epoch=5)), epochs=1).run().metrics
    assert np.isfinite(metrics["test_loss"])
    with pytest.raises(ConfigurationError, match="The test data has 5 batches, and steps_per_epoch=6; expected 5 or"):
        Trainer(task(train, test=Stream(slices().batch(5), steps_per_epoch=6)), epochs=1).run()


@pytest.mark.parametrize("arguments", [(iter([(X, Y)]),), ((X, Y),), (slices(), 0), (slices(), "5")])
def test_what_is_no_stream_is_refused(arguments: Any) -> None:
    message = "The data is a .*; expected a tf.data.Dataset|steps_per_epoch is .*; expected a whole number >= 1"
    with pytest.raises(ConfigurationError, match=message):
        Stream(arguments[0], steps_per_epoch=None if len(arguments) == 1 else arguments[1])


def test_whether_elements_are_batches_is_told_by_the_model_or_by_its_owner() -> None:
    square = tf.data.Dataset.from_tensor_slices((np.zeros((8, 4), np.float32), np.zeros((8, 4), np.float32)))
    with pytest.raises(ConfigurationError, match=r"Stream\(dataset, batched=True\)"):
        _ = Stream(square).element_spec
    assert Stream(square, batched=False).element_spec[0].shape.as_list() == [None, 4]
    assert Stream(square).fitted([(None, 4)], class_names=()).element_spec[0].shape.as_list() == [None, 4]


@pytest.mark.parametrize("source", [Arrays((X, Y)), Stream(slices())], ids=["arrays", "stream"])
def test_examples_are_the_first_ones(source: Any) -> None:
    examples = source.fitted([(None, 4)], class_names=()).examples(6)
    np.testing.assert_array_equal(examples.inputs, X[:6])
    assert (examples.count, examples.labels) == (6, None)


# ---- files ----------------------------------------------------------------------------------------------------------


def test_image_folders_share_the_classes_of_the_training_data(tmp_path: Path, subset: Any) -> None:
    three = write_garments(tmp_path / "three", subset, labels=(1, 8, 9), count=6, side=lambda number: 28)
    two = write_garments(tmp_path / "two", subset, labels=(8, 9), count=3, side=lambda number: 28)
    train, test = ImageFolder(three / "train"), ImageFolder(two / "test")
    fitted = test.fitted([(None, 16, 16, 3)], class_names=train.class_names)
    assert fitted.class_names == train.class_names and len(train.class_names) == 3
    assert test.class_names == train.class_names[:2]
    (images, labels), *rest = fitted.batches(InputRequest(batch_size=9), training=False)
    assert images.shape == (6, 16, 16, 3) and not rest
    assert labels.numpy().tolist() == [0] * 3 + [1] * 3
    examples = fitted.examples(4)
    assert examples.inputs.shape == (4, 16, 16, 3) and examples.encoded is not None
    assert examples.encoded[0][:2] == b"\xff\xd8"
    with pytest.raises(ConfigurationError, match="has the folders train and test"):
        _ = ImageFolder(three).class_names
    with pytest.raises(ConfigurationError, match=r"needs the size of the images.*image=ImageOptions"):
        train.fitted([(None, 5)], class_names=())
    with pytest.raises(ConfigurationError, match="split is 'all'"):
        ImageFolder(tmp_path, split="all")  # type: ignore[arg-type]


def write_records(path: Path) -> None:
    def example(row: int) -> bytes:
        features = {
            "x": tf.train.Feature(float_list=tf.train.FloatList(value=X[row])),
            "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(X[row, 0] > 0)])),
        }
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in range(ROWS):
            writer.write(example(row))


def test_records_of_features_train_and_make_a_signature_of_examples(tmp_path: Path) -> None:
    write_records(tmp_path / "rows-0.tfrecord")
    features = [FeatureSpec(name="x", dtype="float32", shape=(4,))]
    records = Records(str(tmp_path / "rows-*"), features=features, label=FeatureSpec(name="y", dtype="int64"))

    def make() -> keras.Model:
        return keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(2)])

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    classes = SupervisedTask(
        make, loss=loss, train=records, test=records, metrics=["accuracy"], optimizer=keras.optimizers.Adam(0.1)
    )
    result = Trainer(classes, epochs=6, batch_size=8).run()
    assert result.metrics["test_accuracy"] > 0.85
    data = classes.verification_data(10)
    assert set(classes.signatures()) == {"serving_default", "examples"} == set(data.inputs)
    np.testing.assert_allclose(data.inputs["serving_default"]["x"], X[:10])
    assert data.labels is not None and data.labels.tolist() == (X[:10, 0] > 0).astype(int).tolist()
    assert tf.train.Example.FromString(data.inputs["examples"]["inputs"][3]).features.feature["y"].int64_list.value
    with pytest.raises(ConfigurationError, match="features or label alone"):
        Records("rows-*", features=features)
    with pytest.raises(DatasetNotFoundError, match="There is no file"):
        _ = Records(str(tmp_path / "none-*")).class_names
    with pytest.raises(DatasetNotFoundError, match=f"There is no file {tmp_path}; .*such as {tmp_path}/train-"):
        _ = Records(tmp_path).files
    for name, wrong in (("image", (8, 8)), ("augmentation", True), ("label", "y")):
        given: dict[str, Any] = {"features": features if name == "label" else (), name: wrong}
        with pytest.raises(ConfigurationError, match=f"{name} is .*; expected .*Options|Augmentation|FeatureSpec"):
            Records(tmp_path / "rows-*", **given)
    with pytest.raises(ConfigurationError, match=r"image is \(8, 8\); expected ImageOptions\(...\)"):
        ImageFolder(tmp_path, image=(8, 8))  # type: ignore[arg-type]
    label = FeatureSpec(name="y", dtype="int64")
    other = Records(tmp_path / "rows-*", features=[replace(features[0], name="z")], label=label)
    with pytest.raises(TrainingError, match=r"rows-\* cannot be read: .*Feature: z .* could not be found"):
        other.examples(2)
    (path,) = tmp_path.glob("rows-*")
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    with pytest.raises(TrainingError, match=r"rows-\* cannot be read: corrupted record at 12$"):
        records.examples(2)


def test_records_of_images_are_those_of_their_folder(tmp_path: Path, subset: Any) -> None:
    folder = write_garments(tmp_path / "photos", subset, labels=(1, 8), count=3, side=lambda number: 28)
    source = ImageFolder(folder, split="train", image=ImageOptions(height=12, width=12))
    with tf.io.TFRecordWriter(str(tmp_path / "all.tfrecord")) as writer:
        for path, label in zip(source.files.train.paths, source.files.train.labels, strict=True):
            stored = {
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[path.read_bytes()])),
                "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label + 1])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=stored)).SerializeToString())
    records = Records(tmp_path / "all.tfrecord", label_offset=1).fitted([(None, 12, 12, 3)], class_names=())
    expected, found = (each.examples(6) for each in (source, records))
    np.testing.assert_array_equal(expected.inputs, found.inputs)
    np.testing.assert_array_equal(expected.labels, found.labels)
    (images, labels), *_ = records.batches(InputRequest(batch_size=6), training=False)
    np.testing.assert_allclose(images, expected.inputs, atol=1e-6)
    np.testing.assert_array_equal(labels, expected.labels)
