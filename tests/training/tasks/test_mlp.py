"""What compiling the step of ``mlp`` and its decay gain; what it learns is in the test of the zoo."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from modelyard.training import Trainer, TrainerOptions
from modelyard.training.data import FashionMnist
from modelyard.training.tasks import MlpTask


def test_a_compiled_step_is_at_least_three_times_as_fast_as_an_eager_one(subset: FashionMnist) -> None:
    few = replace(
        subset,
        train_images=subset.train_images[:1000], train_labels=subset.train_labels[:1000],
        test_images=subset.test_images[:100], test_labels=subset.test_labels[:100],
    )  # fmt: skip
    ratios = []
    # In turn, so that what else the machine does slows both.
    for _ in range(3):
        rates: dict[Literal["eager", "step"], float] = {"eager": 0.0, "step": 0.0}
        for loop in rates:
            # The first epoch pays for tracing.
            options = TrainerOptions(epochs=2, batch_size=64, loop=loop)
            rates[loop] = Trainer(MlpTask(data=few), options).run().history[-1].examples_per_second
        ratios.append(rates["step"] / rates["eager"])
    assert statistics.median(ratios) >= 3, ratios


def test_the_step_size_decays_and_the_accuracy_settles(subset: FashionMnist) -> None:
    def trained(decay: float) -> tuple[MlpTask, list[float]]:
        task = MlpTask(data=subset, learning_rate=0.01, decay=decay)
        options = TrainerOptions(epochs=16, batch_size=32, steps_per_loop=63)
        history = Trainer(task, options).run().history
        return task, [epoch.evaluation["accuracy"] for epoch in history]

    task, accuracy = trained(0.01)
    # After 1,008 steps.
    assert float(task.optimizer.learning_rate) == pytest.approx(0.01 * 0.01**1.008, rel=1e-4)
    constant = trained(1.0)[1]
    # With a constant step size the last accuracies go up and down by several times as much.
    assert np.ptp(accuracy[-4:]) < 0.5 * np.ptp(constant[-4:])
    assert accuracy[-1] > 0.75
