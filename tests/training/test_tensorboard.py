from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from modelyard.errors import TrainingError
from modelyard.training import TensorBoardLog, Trainer, TrainerOptions
from tests.training.toy_task import ToyTask


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(folder.glob("events.*")):
        for raw in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(raw)
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, float(tf.make_ndarray(value.tensor))))
    return found


def test_train_and_test_are_two_runs_of_the_same_scalars(tmp_path: Path) -> None:
    options = TrainerOptions(epochs=2, batch_size=8, steps_per_loop=4)
    result = Trainer(ToyTask(), options, [TensorBoardLog(str(tmp_path))]).run()
    train, test = scalars(tmp_path / "train"), scalars(tmp_path / "test")
    assert [step for step, _ in train["loss"]] == [4, 6, 10, 12]
    assert train["loss"][3][1] == pytest.approx(result.history[1].train["loss"])
    assert [step for step, _ in train["examples_per_second"]] == [4, 6, 10, 12]
    assert [step for step, _ in test["loss"]] == [6, 12]
    assert test["loss"][0][1] == pytest.approx(result.history[0].evaluation["loss"])


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match=f"The log {tmp_path}/file cannot be written"):
        Trainer(ToyTask(), epochs=1, batch_size=8, actions=[TensorBoardLog(tmp_path / "file")]).run()
