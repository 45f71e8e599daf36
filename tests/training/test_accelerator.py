"""Every mode of the loop on a GPU: ``pytest -m accelerator --junit-xml=FILE`` also says how fast each one is."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from modelyard.training import Loop, ThroughputLog, Trainer, TrainerOptions, make_strategy
from modelyard.training.data import FashionMnist
from modelyard.training.tasks import FashionTask

pytestmark = [
    pytest.mark.accelerator,
    pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="this machine has no GPU"),
]

FORMS: dict[str, dict[str, Any]] = {
    "eager": {"loop": "eager"},
    "step": {"loop": "step"},
    "loop": {"loop": "loop"},
    "epoch": {"loop": "epoch"},
    "loop, XLA": {"loop": "loop", "jit_compile": True},
    "epoch, XLA": {"loop": "epoch", "jit_compile": True},
    "loop, GPU:0 named, prefetch": {"loop": "loop", "devices": ("GPU:0",), "prefetch_to_device": True},
    "loop, split over GPU:0 and CPU:0": {"loop": "loop", "devices": ("GPU:0", "CPU:0")},
    "loop, bfloat16": {"loop": "loop", "precision": "mixed_bfloat16"},
    "loop, accumulated": {"loop": "loop", "accumulate_steps": 2},
}


def options(changes: dict[str, Any]) -> TrainerOptions:
    return TrainerOptions(max_steps=96, eval_every_steps=48, batch_size=64, steps_per_loop=16, **changes)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_learns_on_the_gpu(name: str, subset: FashionMnist, record_property: Any) -> None:
    speed = ThroughputLog()
    task = FashionTask(data=subset)
    result = Trainer(task, options(FORMS[name]), [speed]).run()
    assert result.metrics["test_accuracy"] > 0.7
    assert all("GPU" in variable.value.device for variable in task.model.trainable_variables)
    record_property(name, str(speed.summary()))


@pytest.mark.parametrize("kind", ["one", "mirrored"])
def test_a_strategy_learns_on_the_gpu(kind: Any, subset: FashionMnist, record_property: Any) -> None:
    speed = ThroughputLog()
    task = FashionTask(data=subset)
    result = Trainer(task, options({}), [speed], strategy=make_strategy(kind)).run()
    assert result.metrics["test_accuracy"] > 0.7
    record_property(kind, str(speed.summary()))


def test_a_loop_of_ones_own_learns_on_the_gpu(subset: FashionMnist) -> None:
    from modelyard.training import InputRequest

    loop, task = Loop(devices=("GPU:0",), prefetch_to_device=True), FashionTask(data=subset)
    with loop.building():
        task.build()
    train = loop.train_step(task.train_step)
    with loop:
        for epoch in loop.epochs(2):
            for batch in loop.batches(task.train_dataset(InputRequest(batch_size=64, epoch=epoch))):
                train(batch)
            losses = train.means()
    assert losses["loss"] < 1.0
