from __future__ import annotations

from modelyard.training import EvalResult, TrainResult
from tests.training.toy_task import ToyTask


def test_metrics_are_those_of_the_last_epoch() -> None:
    epochs = tuple(
        EvalResult(
            epoch=number, step=number, train={"loss": 1.0 / number}, evaluation={"loss": 2.0 / number}, seconds=1.0,
            eval_seconds=1.0, examples_per_second=1.0,
        )
        for number in (1, 2)
    )  # fmt: skip
    result = TrainResult(task=ToyTask(), step=2, history=epochs, resumed_from=None, checkpoint=None, data="", config={})
    assert result.metrics == {"loss": 0.5, "test_loss": 1.0}


def test_no_epochs_have_no_metrics() -> None:
    result = TrainResult(task=ToyTask(), step=0, history=(), resumed_from=None, checkpoint=None, data="", config={})
    assert result.metrics == {}
