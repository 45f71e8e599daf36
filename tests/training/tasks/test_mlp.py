"""What compiling the step of ``mlp`` gains; what it learns is in the test of the zoo."""

from __future__ import annotations

import statistics
from typing import Literal

from modelyard.training import Trainer, TrainerOptions
from modelyard.training.data import FashionMnist
from modelyard.training.tasks import MlpTask


def test_a_compiled_step_is_at_least_three_times_as_fast_as_an_eager_one(subset: FashionMnist) -> None:
    ratios = []
    # In turn, so that what else the machine does slows both.
    for _ in range(3):
        rates: dict[Literal["eager", "step"], float] = {"eager": 0.0, "step": 0.0}
        for loop in rates:
            # The first epoch pays for tracing.
            options = TrainerOptions(epochs=2, batch_size=64, loop=loop)
            rates[loop] = Trainer(MlpTask(data=subset), options).run().history[-1].examples_per_second
        ratios.append(rates["step"] / rates["eager"])
    assert statistics.median(ratios) >= 3, ratios
