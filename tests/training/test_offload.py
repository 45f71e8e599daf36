from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from modelyard.errors import ConfigurationError
from modelyard.training import offload_slots
from tests.support.devices import LOGICAL_CPUS

HOST, DEVICE = LOGICAL_CPUS[:2]
optimizers = keras.optimizers

SCHEDULE = optimizers.schedules.CosineDecay(0.1, 10)
MAKERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: optimizers.Adam(0.01),
    "adam with the rest": lambda: optimizers.Adam(SCHEDULE, amsgrad=True, clipnorm=0.5, weight_decay=0.1, use_ema=True),
    "momentum": lambda: optimizers.SGD(0.01, momentum=0.9, nesterov=True),
    "rmsprop": lambda: optimizers.RMSprop(0.01, centered=True, momentum=0.9),
    "adafactor": lambda: optimizers.Adafactor(0.01),
}


class Run:
    """A model on the second device, with an embedding for gradients that are sparse."""

    def __init__(self, optimizer: Any) -> None:
        keras.utils.set_random_seed(3)
        with tf.device(DEVICE):
            layers = keras.layers
            self.model = keras.Sequential(
                [keras.Input((4,), dtype="int32"), layers.Embedding(10, 6), layers.Flatten(), layers.Dense(1)]
            )
        self.optimizer = optimizer
        self.optimizer.build(self.model.trainable_variables)
        rng = np.random.default_rng(4)
        self.batch = (
            rng.integers(0, 10, size=(8, 4)).astype(np.int32),
            rng.normal(size=(8, 1)).astype(np.float32),
        )
        self.step = tf.function(self.eager_step)

    def eager_step(self, inputs: Any, targets: Any) -> Any:
        with tf.device(DEVICE):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.model(inputs, training=True) - targets) ** 2)
            variables = self.model.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    def values(self) -> list[Any]:
        return [np.asarray(value) for value in [*self.model.variables, *self.optimizer.variables]]


@pytest.mark.parametrize("name", MAKERS)
def test_the_numbers_are_those_of_the_optimizer(name: str) -> None:
    plain, offloaded = Run(MAKERS[name]()), Run(offload_slots(MAKERS[name](), host=HOST))
    before = offloaded.values()
    for _ in range(3):
        for run in (plain, offloaded):
            run.step(*run.batch)
    assert not all(np.array_equal(a, b) for a, b in zip(before, offloaded.values(), strict=True))
    for expected, value in zip(plain.values(), offloaded.values(), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6)


def test_an_eager_step_gives_them_too() -> None:
    plain, offloaded = Run(optimizers.Adam(0.01)), Run(offload_slots(optimizers.Adam(0.01)))
    for run in (plain, offloaded):
        run.eager_step(*run.batch)
    assert all(np.array_equal(a, b) for a, b in zip(plain.values(), offloaded.values(), strict=True))


def operations(run: Run) -> dict[str, Counter[str]]:
    """What runs where in one compiled step: from the graphs that TensorFlow makes of it for each device."""
    context.context().enable_run_metadata()
    try:
        run.step(*run.batch)
        metadata = context.context().export_run_metadata()
    finally:
        context.context().disable_run_metadata()
    (graphs,) = [
        function.partition_graphs
        for function in metadata.function_graphs
        if any(node.op == "UnsortedSegmentSum" for graph in function.partition_graphs for node in graph.node)
    ]
    return {
        device: Counter(node.op for graph in graphs for node in graph.node if node.device == device)
        for device in (HOST, DEVICE)
    }


def test_slots_live_on_the_host_and_visit_the_device_for_the_update() -> None:
    plain, offloaded = Run(optimizers.Adam(0.01)), Run(offload_slots(optimizers.Adam(0.01), host=HOST))
    weights = len(offloaded.model.trainable_variables)
    assert {variable.value.device for variable in offloaded.model.variables} == {DEVICE}
    assert [variable.value.device for variable in plain.optimizer.variables].count(DEVICE) == 2 * weights
    assert {variable.value.device for variable in offloaded.optimizer.variables} == {HOST}
    before, after = operations(plain), operations(offloaded)
    # The host reads, sends, receives and stores: slots, and the step's number with or without offloading.
    moving = {"_Arg", "_DeviceArg", "_Retval", "_Send", "_Recv", "ReadVariableOp", "AssignVariableOp", "Identity"}
    assert set(after[HOST]) <= moving | set(before[HOST])
    assert after[HOST]["AssignVariableOp"] == before[HOST]["AssignVariableOp"] + 2 * weights
    assert after[HOST]["_Recv"] == before[HOST]["_Recv"] + 2 * weights
    # The update is computed on the device as before.
    assert after[DEVICE]["Sqrt"] == before[DEVICE]["Sqrt"] > 0
    assert after[DEVICE]["AssignVariableOp"] + after[DEVICE]["AssignAddVariableOp"] == 0


def test_checkpoints_hold_every_slot_once(tmp_path: Any) -> None:
    run = Run(offload_slots(optimizers.Adam(0.01)))
    run.step(*run.batch)
    path = tf.train.Checkpoint(optimizer=run.optimizer).write(str(tmp_path / "checkpoint"))
    other = Run(optimizers.Adam(0.01))
    # The same names, so that a run may change its mind about offloading.
    tf.train.Checkpoint(optimizer=other.optimizer).read(path).assert_consumed()
    for expected, value in zip(run.optimizer.variables, other.optimizer.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(value), np.asarray(expected))


def test_what_cannot_be_offloaded_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="Adam is built already"):
        offload_slots(Run(optimizers.Adam()).optimizer)
    with pytest.raises(ConfigurationError, match="LossScaleOptimizer has no slots of its own"):
        offload_slots(optimizers.LossScaleOptimizer(optimizers.Adam()))
    with pytest.raises(ConfigurationError, match="Adam accumulates gradients in variables of its own"):
        offload_slots(optimizers.Adam(gradient_accumulation_steps=2))
    with tf.distribute.MirroredStrategy(LOGICAL_CPUS[:2]).scope():
        with pytest.raises(ConfigurationError, match="cannot be offloaded with 2 replicas"):
            offload_slots(optimizers.Adam())
