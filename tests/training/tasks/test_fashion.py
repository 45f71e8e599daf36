from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.artifact import EncodedImageFunction, SignatureFunction, decode_image
from modelyard.errors import ConfigurationError
from modelyard.training import InputRequest, Trainer, TrainerOptions, TrainResult
from modelyard.training.data import FashionMnist
from modelyard.training.tasks import FashionTask


@pytest.fixture(scope="module")
def trained(subset: FashionMnist) -> tuple[FashionTask, TrainResult]:
    task = FashionTask(data=subset)
    return task, Trainer(task, TrainerOptions(epochs=4, batch_size=32)).run()


@pytest.fixture(scope="module")
def task(trained: tuple[FashionTask, TrainResult]) -> FashionTask:
    return trained[0]


def compute(task: FashionTask, image: Any) -> dict[str, np.ndarray]:
    function = task.signatures()["serving_default"]
    if not isinstance(function, SignatureFunction):
        pytest.fail("serving_default computes")
    return {name: value.numpy() for name, value in tf.function(function.function)(image=tf.constant(image)).items()}


def preprocess(task: FashionTask, pixels: np.ndarray) -> np.ndarray:
    function = task.signatures()["image_bytes"]
    if not isinstance(function, EncodedImageFunction):
        pytest.fail("image_bytes decodes")
    spec = tf.TensorSpec([None, None, 3], tf.uint8)
    return tf.function(function.preprocess, input_signature=[spec])(tf.constant(pixels)).numpy()


def test_it_learns_from_the_subset(trained: tuple[FashionTask, TrainResult]) -> None:
    result = trained[1]
    assert result.metrics["test_accuracy"] > 0.7
    assert result.history[-1].train["loss"] < 0.6 * result.history[0].train["loss"]
    assert result.data == "small subset shipped with modelyard, 2,000 + 1,000 images"


def test_the_network_is_the_tutorials(task: FashionTask) -> None:
    assert [tuple(weight.shape) for weight in task.model.weights] == [
        (3, 3, 1, 32), (32,), (3, 3, 32, 64), (64,), (1600, 64), (64,), (64, 10), (10,),
    ]  # fmt: skip
    assert task.exported == {"model": task.model}
    assert task.model(np.zeros((2, 28, 28, 1), np.float32)).shape == (2, 10)


def test_the_served_outputs_agree_with_each_other_and_with_the_accuracy(
    trained: tuple[FashionTask, TrainResult], subset: FashionMnist
) -> None:
    task, result = trained
    outputs = compute(task, subset.test_images[..., np.newaxis] / np.float32(255))
    assert {name: (value.dtype.kind, value.shape) for name, value in outputs.items()} == {
        "class_id": ("i", (1000,)), "label": ("O", (1000,)), "probabilities": ("f", (1000, 10)),
    }  # fmt: skip
    assert outputs["class_id"].dtype == np.int64
    np.testing.assert_array_equal(outputs["class_id"], outputs["probabilities"].argmax(axis=1))
    np.testing.assert_allclose(outputs["probabilities"].sum(axis=1), 1, rtol=1e-5)
    assert [subset.class_names[index] for index in outputs["class_id"]] == [name.decode() for name in outputs["label"]]
    accuracy = (outputs["class_id"] == subset.test_labels).mean()
    assert accuracy == pytest.approx(result.metrics["test_accuracy"], abs=2e-3)


def test_the_signatures_declare_what_clients_send(task: FashionTask) -> None:
    signatures = task.signatures()
    assert sorted(signatures) == ["image_bytes", "serving_default"]
    default, encoded = signatures["serving_default"], signatures["image_bytes"]
    assert isinstance(default, SignatureFunction)
    assert [(spec.name, spec.dtype, spec.shape) for spec in default.inputs] == [("image", "float32", (-1, 28, 28, 1))]
    assert isinstance(encoded, EncodedImageFunction)
    assert (encoded.compute, encoded.input, encoded.channels) == ("serving_default", "image_bytes", 3)


def test_a_grey_png_gives_the_tensor_of_the_plain_path(task: FashionTask) -> None:
    data = task.verification_data(1).inputs
    pixels = decode_image(data["image_bytes"]["image_bytes"][0], 3)
    found = preprocess(task, pixels)
    assert (found.dtype.name, found.shape) == ("float32", (28, 28, 1))
    np.testing.assert_allclose(found, data["serving_default"]["image"][0], atol=1e-6)


def test_colours_and_sizes_come_to_grey_28_by_28(task: FashionTask) -> None:
    red = np.zeros((3, 50, 3), np.uint8)
    red[..., 0] = 255
    np.testing.assert_allclose(preprocess(task, red), np.full((28, 28, 1), 0.299), atol=1e-6)
    ramp = np.repeat(np.arange(56, dtype=np.uint8)[:, np.newaxis, np.newaxis], 3, axis=2).repeat(28, axis=1)
    # Half-pixel centres: each row of the result lies between two rows of the image.
    np.testing.assert_allclose(preprocess(task, ramp)[:, 0, 0] * 255, np.arange(28) * 2 + 0.5, atol=1e-4)


def test_most_encoded_variants_keep_their_class(task: FashionTask) -> None:
    data = task.verification_data(200)
    plain = compute(task, data.inputs["serving_default"]["image"])["class_id"]
    images = [preprocess(task, decode_image(item, 3)) for item in data.inputs["image_bytes"]["image_bytes"]]
    assert (compute(task, np.stack(images))["class_id"] == plain).mean() > 0.9


def test_verification_data_are_real_test_images(task: FashionTask, subset: FashionMnist) -> None:
    data = task.verification_data(6)
    image = data.inputs["serving_default"]["image"]
    assert (image.dtype.name, image.shape) == ("float32", (6, 28, 28, 1))
    np.testing.assert_array_equal(np.rint(image[..., 0] * 255), subset.test_images[:6])
    encoded = data.inputs["image_bytes"]["image_bytes"]
    assert (encoded.dtype.name, encoded.shape) == ("object", (6,))
    assert all(isinstance(item, bytes) for item in encoded)
    assert data.labels is not None
    assert data.labels.dtype == np.int64
    assert data.labels.tolist() == subset.test_labels[:6].tolist()
    assert data.class_names == subset.class_names
    assert data.description == "first 6 test images; small subset shipped with modelyard, 2,000 + 1,000 images"


def test_more_than_there_are_gives_all(task: FashionTask) -> None:
    assert len(task.verification_data(5000).inputs["image_bytes"]["image_bytes"]) == 1000


@pytest.mark.parametrize("count", [0, -3])
def test_no_examples_are_an_error(count: int, task: FashionTask) -> None:
    with pytest.raises(ConfigurationError, match=f"count is {count}"):
        task.verification_data(count)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_learning_rate_that_cannot_be_is_an_error(rate: float) -> None:
    with pytest.raises(ConfigurationError, match="learning_rate"):
        FashionTask(learning_rate=rate)


def test_before_build_there_is_no_model(subset: FashionMnist) -> None:
    with pytest.raises(AttributeError, match=r"has no 'model'. What build\(\) makes"):
        _ = FashionTask(data=subset).model


def test_it_loads_its_data_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELYARD_DATA", "subset")
    task = FashionTask()
    assert int(task.train_dataset(InputRequest(batch_size=64)).cardinality()) == 32
    assert int(task.eval_dataset(InputRequest(batch_size=500)).cardinality()) == 2
