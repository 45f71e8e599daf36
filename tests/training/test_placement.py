"""Where steps are computed: XLA, named devices, one batch over several, batches copied ahead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training import Trainer, TrainerOptions, TrainResult
from tests.training.test_own_loop import MinimizingToy, QuietToy
from tests.training.toy_task import ToyTask

OPTIONS = TrainerOptions(max_steps=9, batch_size=8, seed=11, clip_norm=2.0)
#: The last batch of an epoch has four examples: one of three devices gets two of them.
DEVICES = ("CPU:0", "CPU:1", "CPU:2")


class Recording(QuietToy):
    """Says where it was computed."""

    placed: list[str]

    def train_step(self, batch: Any) -> Any:
        found = super().train_step(batch)
        self.placed = [*getattr(self, "placed", []), found["loss"].device.rpartition("device:")[2]]
        return found


def run(kind: type[ToyTask], **changes: Any) -> tuple[Any, TrainResult]:
    task = kind()
    return task, Trainer(task, replace(OPTIONS, **changes)).run()


def assert_close(one: ToyTask, other: ToyTask) -> None:
    for a, b in zip(one.values(), other.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def alone() -> tuple[Any, TrainResult]:
    return run(QuietToy)


@pytest.mark.parametrize("loop", ["step", "loop", "eager"])
def test_one_batch_over_several_devices_is_the_undivided_one(loop: str, alone: tuple[Any, TrainResult]) -> None:
    task, result = run(Recording, devices=DEVICES, loop=loop)
    assert set(task.placed) == set(DEVICES)
    assert_close(task, alone[0])
    expected = {name: pytest.approx(value, rel=1e-4) for name, value in alone[1].metrics.items()}
    if loop != "eager":
        assert result.metrics == expected


@pytest.fixture(scope="module")
def resident() -> ToyTask:
    return run(QuietToy, loop="epoch")[0]


def test_resident_data_is_shared_out_too(resident: ToyTask) -> None:
    two, _ = run(QuietToy, loop="epoch", devices=DEVICES[:2])
    assert_close(two, resident)


def test_one_device_has_everything(alone: tuple[Any, TrainResult]) -> None:
    task, _ = run(Recording, devices=("CPU:1",), prefetch_to_device=True)
    assert set(task.placed) == {"CPU:1"}
    assert all(value.value.device.endswith("CPU:1") for value in task.model.trainable_variables)
    assert_close(task, alone[0])


@pytest.mark.parametrize("loop", ["step", "loop", "epoch"])
def test_xla_computes_the_same(loop: str, alone: tuple[Any, TrainResult], resident: ToyTask) -> None:
    two, _ = run(QuietToy, loop=loop, jit_compile=True)
    assert_close(two, resident if loop == "epoch" else alone[0])

    # It was XLA: an op that it does not have is refused.
    class Text(QuietToy):
        def train_step(self, batch: Any) -> Any:
            found = super().train_step(batch)
            return {**found, "length": tf.strings.length(tf.strings.as_string(found["loss"]))}

    with pytest.raises(Exception, match="(?i)xla|AsString"):
        run(Text, loop=loop, jit_compile=True)


def test_what_does_not_go_together_is_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"jit_compile": True, "loop": "eager"}, "jit_compile and loop='eager' do not work together"),
        ({"jit_compile": True, "accumulate_steps": 2}, "jit_compile and accumulate_steps do not work together"),
        ({"jit_compile": True, "devices": DEVICES}, "jit_compile and several devices do not work together"),
        ({"accumulate_steps": 2, "devices": DEVICES}, "accumulate_steps and several devices do not work together"),
        ({"prefetch_to_device": True}, "prefetch_to_device is set, and devices is empty"),
    ]
    for changes, message in refused:
        with pytest.raises(ConfigurationError, match=message):
            replace(OPTIONS, **changes)
    with pytest.raises(ConfigurationError, match="There is no device 'GPU:7'; expected one of CPU:0"):
        run(QuietToy, devices=("GPU:7",))
    alone: list[dict[str, Any]] = [{"devices": ("CPU:0",)}, {"jit_compile": True}]
    for changes in alone:
        with pytest.raises(ConfigurationError, match="does not work with a strategy"):
            Trainer(QuietToy(), replace(OPTIONS, **changes), strategy=tf.distribute.OneDeviceStrategy("CPU:0")).run()
    with pytest.raises(ConfigurationError, match="updates its variables by itself, which .*several devices"):
        run(ToyTask, devices=DEVICES, clip_norm=None)


def test_randomness_is_each_devices_own() -> None:
    _, result = run(MinimizingToy, devices=DEVICES, max_steps=90)
    assert result.history[-1].evaluation["loss"] < 0.5 * result.history[0].evaluation["loss"]
