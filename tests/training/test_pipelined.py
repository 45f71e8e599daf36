from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training import Pipeline, PipelineOptions, PipelineResult, Trainer, TrainerOptions, restore
from modelyard.training.distribute._schedules import SCHEDULES, Pass, Schedule, issue_order, stage_order
from tests.support.devices import LOGICAL_CPUS
from tests.training.toy_task import WIDTH, ToyTask

layers = keras.layers
STAGES: list[Callable[[], Any]] = [
    lambda: keras.Sequential([keras.Input((WIDTH,)), layers.Dense(16, activation="relu", kernel_regularizer="l2")]),
    lambda: keras.Sequential([keras.Input((16,)), layers.Dense(16, activation="tanh")]),
    lambda: keras.Sequential([keras.Input((16,)), layers.Dense(1)]),
]
MICRO = 6


def squares(outputs: Any, targets: Any) -> Any:
    return tf.square(outputs[:, 0] - targets)


class PipelinedToy(ToyTask):
    """The toy in three stages."""

    def __init__(self, options: PipelineOptions) -> None:
        super().__init__()
        self.options = options

    def build(self) -> None:
        self.pipeline = Pipeline(STAGES, self.options)
        self.optimizer = keras.optimizers.Adam(0.02)
        self.optimizer.build(self.pipeline.trainable_variables)

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        features, targets = batch
        result = self.pipeline.gradients(features, targets, squares)
        self.optimizer.apply(result.gradients, self.pipeline.trainable_variables)
        alive = result.live_activations()
        return {"loss": result.losses, **{f"alive_{stage}": alive[stage] for stage in range(3)}}

    def eval_step(self, batch: Any) -> Mapping[str, Any]:
        features, targets = batch
        return {"loss": squares(self.pipeline(features), targets)}

    def values(self) -> list[Any]:
        return [np.asarray(value) for value in [*self.pipeline.variables, *self.optimizer.variables]]


class UndividedToy(PipelinedToy):
    """The same weights, in one step as anybody would write it."""

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        features, targets = batch
        with tf.GradientTape() as tape:
            losses = squares(self.pipeline(features, training=True), targets)
            added = [loss for stage in self.pipeline.stages for loss in stage.losses]
            loss = tf.nn.compute_average_loss(losses) + tf.add_n(added)
        variables = self.pipeline.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": losses}


#: Six steps in each epoch; the last batch, of four examples, is smaller than the number of micro-batches.
OPTIONS = TrainerOptions(epochs=2, batch_size=8, seed=2, steps_per_loop=6)


@pytest.fixture(scope="module")
def undivided() -> tuple[UndividedToy, Any]:
    task = UndividedToy(PipelineOptions(devices=LOGICAL_CPUS[:1]))
    return task, Trainer(task, OPTIONS).run()


@pytest.mark.parametrize(
    ("schedule", "alive"),
    [("sequential", [1, 1, 1]), ("grouped", [MICRO] * 3), ("interleaved", [3, 2, 1])],
)
def test_it_trains_to_the_weights_of_the_undivided_step(
    schedule: Schedule, alive: list[int], undivided: tuple[UndividedToy, Any]
) -> None:
    task = PipelinedToy(PipelineOptions(micro_batches=MICRO, schedule=schedule, devices=LOGICAL_CPUS))
    result = Trainer(task, OPTIONS).run()
    expected_task, expected = undivided
    for value, other in zip(task.values(), expected_task.values(), strict=True):
        np.testing.assert_allclose(value, other, rtol=0, atol=1e-5)
    for epoch, other in zip(result.history, expected.history, strict=True):
        assert epoch.train["loss"] == pytest.approx(other.train["loss"], rel=1e-5)
        assert epoch.evaluation["loss"] == pytest.approx(other.evaluation["loss"], rel=1e-5)
        # From times that the devices took, in every one of the steps.
        assert [epoch.train[f"alive_{stage}"] for stage in range(3)] == alive
    assert result.history[1].train["loss"] < result.history[0].train["loss"]


def test_each_stage_and_its_slots_are_on_its_device() -> None:
    task = PipelinedToy(PipelineOptions())
    task.build()
    assert task.pipeline.devices == ("CPU:0", "CPU:1", "CPU:2")
    for stage, device in zip(task.pipeline.stages, LOGICAL_CPUS, strict=True):
        assert {variable.value.device for variable in stage.variables} == {device}
    slots = [variable.value.device for variable in task.optimizer.variables if variable.path.endswith("momentum")]
    assert slots == [device for device in LOGICAL_CPUS for _ in range(2)]


def test_an_eager_step_gives_the_same_and_the_outputs_in_order() -> None:
    keras.utils.set_random_seed(5)
    pipeline = Pipeline(STAGES, PipelineOptions(micro_batches=3))
    features, targets = tf.random.normal([7, WIDTH]), tf.random.normal([7])
    eager = pipeline.gradients(features, targets, squares)

    @tf.function
    def compiled(features: Any, targets: Any) -> Any:
        result = pipeline.gradients(features, targets, squares)
        return result.gradients, result.idle_fraction()

    gradients, idle = compiled(features, targets)
    for one, other in zip(eager.gradients, gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(eager.outputs, pipeline(features), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(eager.losses, squares(eager.outputs, targets), rtol=1e-6)
    assert 0 < float(idle) < 1
    assert eager.times.shape == (3, 3, 2, 2)


def test_stages_may_pass_on_several_tensors_and_take_whole_numbers() -> None:
    class Split(layers.Layer):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = layers.Embedding(9, 4)
            self.embedding.build()

        def call(self, numbers: Any, training: bool = False) -> Any:
            return {"numbers": numbers, "vectors": self.embedding(numbers)}

    class Join(layers.Layer):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(1)
            self.dense.build((None, 4))

        def call(self, given: Any, training: bool = False) -> Any:
            return self.dense(given["vectors"]) * tf.cast(given["numbers"], tf.float32)[:, None]

    pipeline = Pipeline([Split, Join], PipelineOptions(micro_batches=2, schedule="grouped"))
    numbers, targets = tf.constant([1, 8, 3, 3, 2]), tf.ones([5])
    result = pipeline.gradients(numbers, targets, squares)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(squares(pipeline(numbers, training=True), targets))
    expected = tape.gradient(loss, [variable.value for variable in pipeline.trainable_variables])
    for value, other in zip(result.gradients, expected, strict=True):
        np.testing.assert_allclose(value, tf.convert_to_tensor(other), rtol=1e-5, atol=1e-6)


def test_a_checkpoint_fits_other_schedules_and_devices(tmp_path: Path) -> None:
    trained = PipelinedToy(PipelineOptions(devices=LOGICAL_CPUS))
    Trainer(trained, replace(OPTIONS, epochs=1, model_dir=tmp_path)).run()
    other = PipelinedToy(PipelineOptions(schedule="grouped", micro_batches=2, devices=LOGICAL_CPUS[:1]))
    restore(tmp_path, other)
    assert all(np.array_equal(a, b) for a, b in zip(trained.values(), other.values(), strict=True))


def test_live_activations_are_counted_from_the_times() -> None:
    # One stage; three micro-batches forwards [0, 1], [1, 2], [2, 3]; the first comes back before the third begins.
    times = tf.constant([[[[0, 1], [1, 1.5]], [[1, 2], [5, 6]], [[2, 3], [4, 5]]]], tf.float64)
    one = PipelineResult(losses=tf.zeros([0]), outputs=None, gradients=(), times=times)
    assert one.live_activations().numpy().tolist() == [2]
    assert float(one.idle_fraction()) == pytest.approx(1 - 5.5 / 6)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_are_complete_and_never_wait_for_what_comes_later(schedule: Schedule) -> None:
    stages, micro = 4, 7
    issued = issue_order([stage_order(schedule, stage, stages, micro) for stage in range(stages)])
    assert sorted(issued) == sorted(Pass(s, m, b) for s in range(stages) for m in range(micro) for b in (False, True))
    at = {item: number for number, item in enumerate(issued)}
    for (stage, one, backward), number in at.items():
        if stage and not backward:
            assert at[Pass(stage - 1, one, False)] < number
        if backward:
            assert at[Pass(stage, one, False)] < number
            assert stage == stages - 1 or at[Pass(stage + 1, one, True)] < number


def test_stages_are_shared_out_to_fewer_devices() -> None:
    make = STAGES[:1] * 5
    assert Pipeline(make, PipelineOptions(devices=("CPU:0", "/CPU:2"))).devices == ("CPU:0",) * 3 + ("/CPU:2",) * 2
    assert Pipeline(make[:1], PipelineOptions(devices=("CPU:1", "CPU:2"))).devices == ("CPU:1",)


def test_what_makes_no_sense_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="micro_batches is 0; expected a number >= 1"):
        PipelineOptions(micro_batches=0)
    with pytest.raises(ConfigurationError, match="schedule is 'other'; expected one of sequential, grouped, inter"):
        PipelineOptions(schedule="other")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="at least one stage; received none"):
        Pipeline([])
    with pytest.raises(ConfigurationError, match="There is no device 'GPU:7'; expected one of .*CPU:0"):
        Pipeline(STAGES, PipelineOptions(devices=("GPU:7",)))
