"""What the tasks do not accept, and what they cannot do before they are built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modelyard.errors import ConfigurationError, TrainingError
from modelyard.training.data import FashionMnist
from modelyard.training.tasks import (
    CapsnetTask,
    CycleganTask,
    FashionTask,
    GanTask,
    LadderTask,
    LinearTask,
    MamlTask,
    MlpTask,
    PictureLog,
    SiameseTask,
    SiameseTextTask,
    TransferTask,
    VaeTask,
    tasks,
)
from tests.support.garments import write_garments


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (CapsnetTask, {"iterations": 0}, "iterations is 0; expected at least 1"),
        (FashionTask, {"data": 5}, "data is 5; expected a folder of idx files, or images that are loaded"),
        (CycleganTask, {"side": 30}, "side is 30; expected a multiple of 4"),
        (CycleganTask, {"history": -1}, "history is -1; expected a number of images, or 0"),
        (LinearTask, {"form": "line"}, "form is 'line'; expected module or keras"),
        (LinearTask, {"learning_rate": 0.0}, "learning_rate is 0.0; expected a number above 0"),
        (LinearTask, {"learning_rate": float("nan")}, "learning_rate is nan"),
        (MamlTask, {"problem": "digits"}, "problem is 'digits'; expected sinusoid or fashion"),
        (MamlTask, {"shots": 0}, "shots is 0; expected at least one image of each class"),
        (MlpTask, {"decay": 0.0}, "decay is 0.0; expected a factor above 0 and at most 1"),
        (MlpTask, {"decay": 1.5}, "decay is 1.5"),
        (SiameseTask, {"margin": 0.0}, "margin is 0.0; expected a distance above 0"),
        (SiameseTextTask, {"pairs": 0}, "pairs is 0; expected at least one"),
        (TransferTask, {"backbone": "vgg"}, "backbone is 'vgg'; expected mobilenet_v2 or vgg16"),
        (TransferTask, {"size": 31}, "size is 31; expected at least 32 pixels"),
        (TransferTask, {"trained_layers": -1}, "trained_layers is -1; expected a number of layers"),
        (VaeTask, {"latent": 1}, "latent is 1; expected at least 2 dimensions"),
        (VaeTask, {"samples": 0}, "samples is 0; expected at least one z"),
    ],
)
def test_arguments_that_make_no_sense_are_errors(make: Callable[..., Any], arguments: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(**arguments)


@pytest.mark.parametrize("name", sorted(tasks()))
def test_before_build_there_is_nothing_to_export(name: str, subset: FashionMnist) -> None:
    task = tasks()[name]() if name in ("linear", "maml", "siamese_text", "transfer") else tasks()[name](data=subset)
    with pytest.raises(TrainingError, match=r"call build\(\)"):
        _ = task.exported


@pytest.mark.parametrize("make", [LinearTask, MamlTask, SiameseTextTask])
def test_no_examples_to_verify_with_are_an_error(make: Callable[[], Any]) -> None:
    task = make()
    task.build()
    with pytest.raises(ConfigurationError, match="count is 0; expected at least one example"):
        task.verification_data(0)


def test_no_images_to_verify_with_are_an_error(subset: FashionMnist, tmp_path: Path) -> None:
    write_garments(tmp_path / "garments", subset, labels=(1, 8), count=5, side=lambda number: 28)
    for task in (GanTask(data=subset), TransferTask(folder=str(tmp_path / "garments"), weights="none", size=32)):
        with pytest.raises(ConfigurationError, match="count is 0; expected at least one example"):
            task.verification_data(0)


@pytest.mark.parametrize("labels", [0, 15, -10])
def test_labels_are_as_many_for_each_class(labels: int, subset: FashionMnist) -> None:
    with pytest.raises(ConfigurationError, match=f"labels is {labels}; expected a multiple of the 10 classes"):
        LadderTask(data=subset, labels=labels).labelled()


def test_a_distance_wants_images_enough_for_a_covariance(subset: FashionMnist) -> None:
    few = replace(subset, test_images=subset.test_images[:99], test_labels=subset.test_labels[:99])
    with pytest.raises(ConfigurationError, match="99 test images; expected at least 100"):
        _ = GanTask(data=few).frechet


def test_pictures_are_taken_every_so_many_steps(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="every_steps is 0; expected at least 1"):
        PictureLog(LinearTask(), tmp_path, every_steps=0)
