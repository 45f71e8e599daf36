"""The search of ``nas`` itself; what it finds is in the test of the zoo."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training import Event, InputRequest, StepsDone, Trainer, TrainerOptions, restore
from modelyard.training.data import FashionMnist
from modelyard.training.tasks import NasTask
from modelyard.training.tasks.search import CellSpace

SMALLEST: Mapping[str, Any] = {"blocks": 1, "filters": (2,), "images": 50, "child_steps": 2}
MAIN = "import sys; from modelyard.training.cli import main; sys.exit(main(sys.argv[1:]))"


def test_a_child_is_the_same_network_in_the_search_and_by_itself() -> None:
    """Every operation, both kinds of cell, inputs of all blocks, and filters cut out of more."""
    space = CellSpace(blocks=3, filters=(2, 5), classes=10)
    draw = np.random.default_rng(0)
    images = draw.random((4, 28, 28, 1), np.float32)
    forward: Any = tf.function(space.forward)
    seen = set()
    for _ in range(8):
        choices = np.array([draw.integers(count) for count in space.options], np.int32)
        seen |= {choice for block in range(6) for choice in choices[2 + 4 * block : 5 + 4 * block : 2]}
        weights = [draw.normal(size=shape).astype(np.float32) for shape in space.shapes]
        inside = forward([tf.constant(weight) for weight in weights], tf.constant(choices), images).numpy()
        alone = np.asarray(space.keras_model(choices, weights)(images))
        np.testing.assert_allclose(inside, alone, rtol=1e-3, atol=1e-3 * np.abs(alone).max())
    assert seen == set(range(5))


def test_nas_s_children_are_trained_by_the_workers_of_a_parameter_server(subset: FashionMnist, tmp_path: Path) -> None:
    """Two workers, a parameter server and a chief: every child once, and the best one as the cluster has judged it."""
    flags = [f"--set={name}={list(value) if isinstance(value, tuple) else value}" for name, value in SMALLEST.items()]
    cluster = ["--strategy", "ps", "--local-cluster", "2", "--epochs", "1", "--batch-size", "2"]
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "nas", *flags, *cluster, "--model-dir", str(tmp_path)],
        env={**os.environ, "MODELYARD_DATA": "subset"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    task = NasTask(data=subset, **SMALLEST)
    result = restore(tmp_path, task)
    assert task.rewards.shape == (20, 2)
    assert result.history[-1].train["reward"] == pytest.approx(task.rewards[:, 0].mean(), abs=1e-6)
    logits = np.asarray(task.exported["child"](task.test_images(1000), training=False))
    assert (logits.argmax(axis=1) == subset.test_labels).mean() == pytest.approx(
        result.metrics["test_accuracy"], abs=2e-3
    )


@pytest.fixture(scope="module")
def searched(subset: FashionMnist, session_dir: Path) -> tuple[NasTask, Path, list[np.ndarray]]:
    """A search of ten children, its folder, and the controller's last weights, of which it keeps an average."""
    folder = session_dir / "nas"
    task = NasTask(data=subset, **SMALLEST, learning_rate=0.1)
    last: list[np.ndarray] = []

    def look(event: Event) -> None:
        if isinstance(event, StepsDone):
            last[:] = [np.asarray(weight) for weight in task.controller.trainable_variables]

    options = TrainerOptions(epochs=1, batch_size=1, ema_decay=0.9, model_dir=folder)
    Trainer(task, options, [look]).run()
    return task, folder, last


def test_nas_is_restored_with_its_best_child_and_an_average_of_its_controller(
    subset: FashionMnist, searched: tuple[NasTask, Path, list[np.ndarray]]
) -> None:
    task, folder, last = searched
    again = NasTask(data=subset, **SMALLEST, learning_rate=0.1)
    restore(folder, again)
    assert len(task.rewards) == 10
    np.testing.assert_array_equal(again.rewards, task.rewards)
    assert again.best_child == task.best_child
    for mine, other in zip(again.exported["child"].variables, task.exported["child"].variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), other.numpy())
    assert any(variable.numpy().any() for variable in again.exported["child"].variables)
    averages = [np.asarray(weight) for weight in task.controller.trainable_variables]
    assert max(float(np.abs(one - other).max()) for one, other in zip(last, averages, strict=True)) > 1e-3
    for mean, weight in zip(averages, again.controller.trainable_variables, strict=True):
        np.testing.assert_array_equal(mean, np.asarray(weight))


def test_nas_asks_for_the_same_children_again(subset: FashionMnist) -> None:
    task = NasTask(data=subset)

    def seeds(*, epoch: int, skip_batches: int = 0) -> list[list[list[int]]]:
        request = InputRequest(batch_size=4, seed=7, epoch=epoch, skip_batches=skip_batches)
        return [batch.numpy().tolist() for batch in task.train_dataset(request)]

    assert seeds(epoch=1)[0] == [[7, 40], [7, 41], [7, 42], [7, 43]]
    assert seeds(epoch=1, skip_batches=3) == seeds(epoch=1)[3:]
    assert len({tuple(child) for epoch in (0, 1) for batch in seeds(epoch=epoch) for child in batch}) == 80


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"blocks": 6}, "blocks is 6; expected a number from 1 to 5"),
        ({"filters": ()}, r"filters is \[\]; expected numbers above 0"),
        ({"child_steps": 0}, "child_steps is 0; expected a number >= 1"),
    ],
)
def test_nas_refuses_a_search_without_children(values: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        NasTask(**values)


def test_nas_refuses_too_few_images(subset: FashionMnist) -> None:
    with pytest.raises(ConfigurationError, match="images is 1500; expected at most 1333 of 2000"):
        NasTask(data=subset, images=1500).build()


def test_nas_refuses_replicas(subset: FashionMnist) -> None:
    with (
        tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope(),
        pytest.raises(ConfigurationError, match="got 2 replicas; expected one"),
    ):
        NasTask(data=subset).build()
