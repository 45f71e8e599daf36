"""``transfer`` with VGG16, and with weights from a file; with MobileNetV2 it is in the test of the zoo."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from modelyard.errors import CheckpointError, ConfigurationError, DatasetNotFoundError, ModelyardError
from modelyard.training import Trainer, TrainerOptions, TrainResult
from modelyard.training.data import FashionMnist
from modelyard.training.tasks import LinearTask, TransferTask
from tests.support.garments import write_garments

SEED = 0
#: The last block: three convolutions and its pooling.
TRAINED = 4


@pytest.fixture(scope="module")
def garments(session_dir: Path, subset: FashionMnist) -> Path:
    return write_garments(
        session_dir / "garments-vgg", subset, labels=(1, 8, 9), count=30, side=lambda number: 28 + number % 9
    )


def weights(task: TransferTask) -> dict[str, np.ndarray]:
    return {layer.name: layer.get_weights()[0] for layer in task.backbone.layers if layer.get_weights()}


@pytest.fixture(scope="module")
def source() -> Any:
    keras.utils.set_random_seed(SEED)
    return keras.applications.VGG16(include_top=False, weights=None, input_shape=(32, 32, 3))


@pytest.fixture(scope="module")
def vgg16(garments: Path, source: Any, session_dir: Path) -> tuple[TransferTask, TrainResult, Path]:
    """A task whose last layers were trained, and the folder of its run."""
    file, model_dir = session_dir / "vgg16.weights.h5", session_dir / "vgg16"
    # Keras' own, where it writes a file of weights.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy keyword", DeprecationWarning)
        source.save_weights(file)
    task = TransferTask(
        folder=str(garments), backbone="vgg16", weights=str(file), size=32, trained_layers=TRAINED, learning_rate=1e-3,
        augment=False,
    )  # fmt: skip
    options = TrainerOptions(epochs=6, batch_size=16, seed=SEED, model_dir=model_dir)
    return task, Trainer(task, options).run(), model_dir


def test_vgg16_s_last_layers_learn_and_its_first_stay_as_they_were_loaded(
    source: Any, vgg16: tuple[TransferTask, TrainResult, Path]
) -> None:
    task, result, _ = vgg16
    before = {layer.name: layer.get_weights()[0] for layer in source.layers if layer.get_weights()}
    after = weights(task)
    assert len(before) == 13
    assert {name for name in before if not np.array_equal(before[name], after[name])} == {
        "block5_conv1", "block5_conv2", "block5_conv3",
    }  # fmt: skip
    assert result.history[-1].train["loss"] < 0.7 * result.history[0].train["loss"]
    # Three classes: a third is chance, and what a rate of 0 leaves. Seeds 0 to 4 come to 0.66 to 0.98.
    assert result.metrics["test_accuracy"] > 0.6


def test_weights_come_from_an_earlier_run(garments: Path, vgg16: tuple[TransferTask, TrainResult, Path]) -> None:
    base, _, model_dir = vgg16
    task = TransferTask(folder=str(garments), backbone="vgg16", weights=str(model_dir), size=32, trained_layers=0)
    task.build()
    assert not task.backbone.trainable_weights
    for mine, theirs in zip(task.backbone.get_weights(), base.backbone.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.fixture(scope="module")
def whole() -> Any:
    """MobileNetV2 with its head, of random weights."""
    keras.utils.set_random_seed(SEED)
    return keras.applications.MobileNetV2(weights=None)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@pytest.mark.parametrize("suffix", [".weights.h5", ".h5"])
@pytest.mark.parametrize("head", [True, False])
def test_weights_come_from_any_file_that_keras_saves(
    garments: Path, tmp_path: Path, whole: Any, suffix: str, head: bool
) -> None:
    # Another size than the task's: convolutions do not mind.
    source = whole if head else keras.applications.MobileNetV2(include_top=False, weights=None, input_shape=(96, 96, 3))
    file = tmp_path / f"mobilenet{suffix}"
    (source.save_weights if suffix == ".weights.h5" else source.save)(file)
    task = TransferTask(folder=str(garments), weights=str(file), size=32)
    task.build()
    found = task.backbone.get_weights()
    assert len(found) == 260
    for mine, theirs in zip(found, source.get_weights(), strict=False):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_weights_of_something_else_are_an_error(garments: Path, tmp_path: Path) -> None:
    def refused(weights: Path, message: str, error: type[ModelyardError] = ConfigurationError) -> None:
        task = TransferTask(folder=str(garments), weights=str(weights), size=32)
        with pytest.raises(error, match=message):
            task.build()

    text, other, run = tmp_path / "text.h5", tmp_path / "other.weights.h5", tmp_path / "run"
    text.write_text("no weights")
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save_weights(other)
    Trainer(LinearTask(), TrainerOptions(max_steps=1, model_dir=run)).run()
    for path in (text, other, run):
        refused(path, f"{path.name} has no weights of mobilenet_v2: .* Give weights that Keras saved")
    refused(tmp_path / "none.h5", "none.h5' to take the weights of mobilenet_v2 from", DatasetNotFoundError)
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(empty, "empty", CheckpointError)


@pytest.mark.parametrize("name", ["vgg16", "mobilenet_v2"])
def test_images_come_as_the_backbone_s_weights_expect_them(garments: Path, name: Any) -> None:
    task = TransferTask(folder=str(garments), backbone=name, weights="none", size=32)
    pixels = np.random.default_rng(SEED).integers(0, 256, (2, 32, 32, 3)).astype(np.float32)
    module = getattr(keras.applications, name)
    expected = module.preprocess_input(pixels.copy())
    np.testing.assert_allclose(task._adapted(pixels / np.float32(255)), expected, atol=1e-4)
