"""Actions that tables, speed, early ends, Weights & Biases and TensorBoard are made of."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from modelyard.errors import ConfigurationError, TrainingError
from modelyard.training import (
    CsvLog,
    EarlyStop,
    Goal,
    ImagePredictions,
    StepsDone,
    TensorBoardLog,
    ThroughputLog,
    Trainer,
    TrainerOptions,
    WandbLog,
    predict_images,
)
from modelyard.training.data import FashionMnist
from modelyard.training.tasks import FashionTask
from tests.support.wandb_files import wandb_history
from tests.training.conftest import RunPython
from tests.training.toy_task import STEPS_PER_EPOCH, ToyTask

OPTIONS = TrainerOptions(epochs=2, batch_size=8, steps_per_loop=2, seed=11)


@pytest.fixture(scope="module")
def fashion(subset: FashionMnist) -> FashionTask:
    task = FashionTask(
        data=replace(subset, train_images=subset.train_images[:256], train_labels=subset.train_labels[:256])
    )
    Trainer(task, TrainerOptions(epochs=1)).run()
    return task


def test_the_table_has_every_epoch_of_all_runs(tmp_path: Path) -> None:
    path, options = tmp_path / "logs" / "epochs.csv", replace(OPTIONS, model_dir=tmp_path)
    Trainer(ToyTask(), replace(options, epochs=1), [CsvLog(path)]).run()
    result = Trainer(ToyTask(), options, [CsvLog(str(path))]).run()
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert [float(row["loss"]) for row in rows] == [epoch.train["loss"] for epoch in result.history]
    assert [float(row["test_loss"]) for row in rows] == [epoch.evaluation["loss"] for epoch in result.history]


def test_tables_and_times_that_cannot_be_written_are_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for action in (CsvLog(tmp_path / "file" / "x.csv"), ThroughputLog(tmp_path / "file" / "x.json")):
        with pytest.raises(TrainingError, match="cannot be written"):
            Trainer(ToyTask(), OPTIONS, [action]).run()
    (tmp_path / "folder").mkdir()
    with pytest.raises(TrainingError, match="cannot be written"):
        Trainer(ToyTask(), OPTIONS, [CsvLog(tmp_path / "folder")]).run()
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}


def test_throughput_leaves_tracing_out_and_knows_slow_steps(tmp_path: Path) -> None:
    log = ThroughputLog(str(tmp_path / "throughput.json"))
    assert log.summary() is None
    events: list[Any] = []
    Trainer(ToyTask(), OPTIONS, [log, events.append]).run()
    loops = [event for event in events if isinstance(event, StepsDone)][1:]
    summary = log.summary()
    assert summary is not None
    assert summary.steps == sum(event.steps for event in loops) == 2 * STEPS_PER_EPOCH - 2
    assert 0 < summary.step_seconds_p50 <= summary.step_seconds_p95 == max(e.seconds / e.steps for e in loops)
    examples = sum((e.examples_per_second or 0) * e.seconds for e in loops)
    assert summary.examples_per_second == pytest.approx(examples / sum(e.seconds for e in loops))
    written = json.loads((tmp_path / "throughput.json").read_text())
    assert written["summary"]["steps"] == summary.steps
    assert [loop["step"] for loop in written["loops"]] == [event.step for event in loops]


def test_a_run_that_gets_no_better_ends_and_stays_ended(tmp_path: Path) -> None:
    options = replace(OPTIONS, epochs=9, model_dir=tmp_path)
    # No epoch is better by that much than the first.
    make = lambda: EarlyStop(Goal(metric="test_loss"), patience=2, min_delta=1e6)  # noqa: E731
    events: list[Any] = []
    result = Trainer(ToyTask(), options, [make(), events.append]).run()
    assert (len(result.history), events[-1].reason) == (3, "finished")
    assert len(Trainer(ToyTask(), options, [make()]).run().history) == 3
    assert len(Trainer(ToyTask(), replace(options, epochs=4)).run().history) == 4


def test_early_stop_checks_what_it_is_given() -> None:
    for patience in (0, -1, 1.5, math.nan, math.inf, "2", None):
        with pytest.raises(ConfigurationError, match="patience is .*; expected a whole number >= 1"):
            EarlyStop(Goal(), patience=patience)  # type: ignore[arg-type]
    for delta in (-1, math.nan, math.inf, "0"):
        with pytest.raises(ConfigurationError, match="min_delta is .*; expected a number >= 0"):
            EarlyStop(Goal(), patience=1, min_delta=delta)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="evaluation has no 'accuracy'; it has test_loss"):
        Trainer(ToyTask(), OPTIONS, [EarlyStop(Goal(metric="accuracy", mode="max"), patience=1)]).run()
    with pytest.raises(ConfigurationError, match="mode is 'up'"):
        Goal(mode="up")  # type: ignore[arg-type]


def test_predictions_are_those_of_the_serving_function(fashion: FashionTask) -> None:
    found = predict_images(fashion, 25, seed=3)
    assert (found.images.shape, len(found.predicted), len(found.actual)) == ((25, 28, 28, 1), 25, 25)
    logits = fashion.model(found.images, training=False)
    names = fashion.data.class_names
    assert list(found.predicted) == [names[index] for index in tf.argmax(logits, axis=-1).numpy()]
    assert found.actual != predict_images(fashion, 25, seed=4).actual
    with pytest.raises(ConfigurationError, match="Task 'toy' has no 'serving_default'"):
        predict_images(ToyTask())


def test_tensorboard_has_histograms_and_images(tmp_path: Path, fashion: FashionTask) -> None:
    task = ToyTask()
    log = TensorBoardLog(tmp_path, histograms=task, predictions=lambda: predict_images(fashion, 3))
    Trainer(task, OPTIONS, [log]).run()
    summaries: dict[tuple[str, str], list[Any]] = {}
    for run in ("train", "test"):
        for file in tmp_path.glob(f"{run}/events.*"):
            for raw in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
                event = tf.compat.v1.Event.FromString(raw)
                for value in event.summary.value:
                    plugin = value.metadata.plugin_data.plugin_name
                    summaries.setdefault((run, value.tag), []).append((event.step, plugin, value.tensor))
    weights = [entries for (_, name), entries in summaries.items() if entries[0][1] == "histograms"]
    assert [len(entries) for entries in weights] == [2] * len(task.model.trainable_variables)
    step, _, images = summaries["test", "predictions"][-1]
    assert (step, len(summaries["test", "predictions"])) == (2 * STEPS_PER_EPOCH, 2)
    assert summaries["test", "predictions"][0][1] == "images"
    # Width, height, then one PNG for each image.
    assert [value[:4] for value in images.string_val[2:]] == [b"\x89PNG"] * 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb", "ignore::ResourceWarning")
def test_wandb_gets_losses_accuracies_and_25_images_with_labels(tmp_path: Path, subset: FashionMnist) -> None:
    small = replace(subset, train_images=subset.train_images[:256], train_labels=subset.train_labels[:256])
    task = FashionTask(data=small)
    seen: list[ImagePredictions] = []

    def predictions() -> ImagePredictions:
        seen.append(predict_images(task))
        return seen[-1]

    log = WandbLog("modelyard", tmp_path, predictions=predictions, mode="offline", config={"note": "test"})
    Trainer(task, TrainerOptions(epochs=1, steps_per_loop=2), [log]).run()
    history = wandb_history(tmp_path)
    assert [row["train/loss"] for row in history if "train/loss" in row]
    assert {"train/accuracy", "train/examples_per_second"} <= {name for row in history for name in row}
    (last,) = [row for row in history if "test/accuracy" in row]
    assert 0 <= last["test/accuracy"] <= 1 and last["test/loss"] > 0
    assert (last["test/predictions/count"], len(last["test/predictions/captions"])) == (25, 25)
    expected = [p if p == a else f"{p} (is {a})" for p, a in zip(seen[0].predicted, seen[0].actual, strict=True)]
    assert last["test/predictions/captions"] == expected
    for name, image in zip(last["test/predictions/filenames"], seen[0].images, strict=True):
        (path,) = tmp_path.glob(f"wandb/offline-run-*/files/{name}")
        assert np.abs(np.asarray(Image.open(path)) / 255.0 - image[..., 0]).max() < 0.01


def test_an_unknown_mode_of_wandb_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="mode is 'off'; expected one of online, offline, disabled"):
        WandbLog("modelyard", tmp_path, mode="off")  # type: ignore[arg-type]


def test_wandb_that_is_not_installed_says_what_to_install(run_python: RunPython) -> None:
    done = run_python(
        "import sys; sys.modules['wandb'] = None\n"
        "from pathlib import Path\n"
        "from modelyard.errors import MissingDependencyError\n"
        "from modelyard.training.actions._wandb import WandbLog\n"
        "try: WandbLog('p', Path('x'))\n"
        "except MissingDependencyError as exc: sys.stdout.write(exc.message)"
    )
    assert "pip install 'modelyard[wandb]'" in done.stdout, done.stderr
