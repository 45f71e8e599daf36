"""``keras.metrics`` objects in steps: over epochs, replicas and resumes, against the same metric on the whole set."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf

from modelyard.errors import CheckpointError, ConfigurationError
from modelyard.training import (
    EarlyStop,
    Evaluated,
    Event,
    Goal,
    InputRequest,
    Trainer,
    TrainerOptions,
    average_loss,
    minimize,
    restore,
)
from tests.support.devices import LOGICAL_CPUS, separate_replicas
from tests.training.test_trainer import StopAt, _Stop
from tests.training.toy_task import WIDTH, ToyTask

CLASSES = 3
#: 43 examples: the last batch has 3, which two replicas share as 2 and 1.
EXAMPLES = 43
OPTIONS = TrainerOptions(epochs=3, batch_size=8, eval_batch_size=10, steps_per_loop=4, seed=11)


def make_metrics() -> dict[str, Any]:
    metrics = {
        "auc": keras.metrics.AUC(),
        "f1": keras.metrics.F1Score(average="macro"),
        "precision": keras.metrics.Precision(),
        "recall": keras.metrics.Recall(),
    }
    # Its variables come with its first values.
    metrics["f1"].update_state(tf.zeros([1, CLASSES]), tf.zeros([1, CLASSES]))
    return metrics


class Classes(ToyTask):
    """Three classes; what training and evaluation saw can be computed again."""

    name: ClassVar[str] = "classes"

    def __init__(self) -> None:
        super().__init__()
        self.features = self.features[:EXAMPLES]
        best = (self.features @ np.random.default_rng(5).normal(size=(WIDTH, CLASSES))).argmax(axis=1)
        self.targets = np.eye(CLASSES, dtype=np.float32)[best]
        self.metrics: dict[str, Any] = {}

    def build(self) -> None:
        self.model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(CLASSES, activation="softmax")])
        self.optimizer = keras.optimizers.Adam(0.05)
        self.optimizer.build(self.model.trainable_variables)
        self.metrics = make_metrics()

    def update(self, labels: Any, probabilities: Any) -> None:
        for metric in self.metrics.values():
            metric.update_state(labels, probabilities)

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        features, labels = batch
        with tf.GradientTape() as tape:
            probabilities = self.model(features, training=True)
            losses = keras.losses.categorical_crossentropy(labels, probabilities)
            loss = average_loss(losses)
        minimize(loss, self.model.trainable_variables, optimizer=self.optimizer, tape=tape)
        self.update(labels, probabilities)
        return {"loss": losses}

    def eval_step(self, batch: Any) -> Mapping[str, Any]:
        features, labels = batch
        probabilities = self.model(features, training=False)
        self.update(labels, probabilities)
        return {"loss": keras.losses.categorical_crossentropy(labels, probabilities)}


def on_whole_set(task: Classes, labels: Any = None, probabilities: Any = None) -> dict[str, float]:
    """What Keras says of all examples at once, after the same weights."""
    if labels is None:
        labels, probabilities = task.targets, task.model(task.features)
    metrics = make_metrics()
    for metric in metrics.values():
        metric.reset_state()
        metric.update_state(labels, probabilities)
    return {name: float(metric.result()) for name, metric in metrics.items()}


class AtEachEpoch:
    """What the metrics of an evaluation must be, computed from the weights right after it."""

    def __init__(self, task: Classes) -> None:
        self.task, self.expected = task, list[dict[str, float]]()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Evaluated):
            self.expected.append(on_whole_set(self.task))


def values(result: Mapping[str, float]) -> dict[str, float]:
    return {name: result[name] for name in ("auc", "f1", "precision", "recall")}


def two_replicas() -> tf.distribute.Strategy:
    separate_replicas()
    return tf.distribute.MirroredStrategy(LOGICAL_CPUS[:2])


@pytest.mark.parametrize(
    ("changes", "replicas"),
    [
        ({"loop": "eager"}, 1), ({"loop": "step"}, 1), ({"loop": "epoch"}, 1),
        ({"accumulate_steps": 3, "ema_decay": 0.5}, 1), ({"loop": "epoch", "accumulate_steps": 3}, 2),
    ],
)  # fmt: skip
def test_an_evaluation_has_the_values_of_the_whole_set_in_every_epoch(changes: dict[str, Any], replicas: int) -> None:
    task = Classes()
    seen = AtEachEpoch(task)
    strategy = two_replicas() if replicas == 2 else None
    result = Trainer(task, replace(OPTIONS, **changes), [seen], strategy=strategy).run()
    assert len(seen.expected) == 3
    for epoch, expected in zip(result.history, seen.expected, strict=True):
        assert values(epoch.evaluation) == pytest.approx(expected, rel=1e-6)
    first, last = result.history[0].evaluation, result.history[-1].evaluation
    assert last["auc"] > first["auc"] > 0
    assert last["loss"] < first["loss"]


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_epochs_training_values_are_of_that_epoch_alone(replicas: int) -> None:
    """With weights that stay within an epoch, it has the values of an evaluation after it; each epoch has others."""

    class Still(Classes):
        def build(self) -> None:
            super().build()
            self.optimizer.learning_rate = 0.0

    task = Still()
    seen = AtEachEpoch(task)

    def change(event: Event) -> None:
        if isinstance(event, Evaluated) and event.epoch < 3:
            for weight in task.model.trainable_variables:
                weight.assign(-2.0 * weight)

    strategy = two_replicas() if replicas == 2 else None
    result = Trainer(task, OPTIONS, [seen, change], strategy=strategy).run()
    expected = on_whole_set(task)
    # By hand, too: a class is predicted where its probability is above one half.
    hit = (np.asarray(task.model(task.features)) > 0.5) & (task.targets == 1)
    assert expected["recall"] == pytest.approx(hit.sum() / EXAMPLES)
    assert len({each["auc"] for each in seen.expected}) == 3 and seen.expected[-1] == pytest.approx(expected)
    for epoch, then in zip(result.history, seen.expected, strict=True):
        assert values(epoch.train) == values(epoch.evaluation) == pytest.approx(then, rel=1e-6)
    assert result.metrics["auc"] == result.metrics["test_auc"]


@pytest.mark.parametrize(("replicas", "background"), [(1, True), (2, False)])
def test_a_run_that_goes_on_in_the_middle_has_the_same_values(tmp_path: Path, replicas: int, background: bool) -> None:
    strategy = two_replicas() if replicas == 2 else None
    options = replace(
        OPTIONS, steps_per_loop=2, checkpoint_every_steps=2, model_dir=tmp_path, async_checkpoints=background
    )
    whole = Trainer(Classes(), replace(options, model_dir=None, checkpoint_every_steps=None), strategy=strategy).run()
    with pytest.raises(_Stop):
        Trainer(Classes(), options, [StopAt(10)], strategy=strategy).run()
    # Another number of replicas goes on with the same counts.
    for other in (strategy, None if strategy else two_replicas()):
        folder = tmp_path / f"copy-{other is strategy}"
        (folder / "checkpoints").mkdir(parents=True)
        for path in sorted((tmp_path / "checkpoints").glob("step-*"))[-1:]:
            shutil.copytree(path, folder / "checkpoints" / path.name)
        result = Trainer(Classes(), replace(options, model_dir=folder), strategy=other).run()
        assert result.resumed_from == 8
        for one, two in zip(result.history, whole.history, strict=True):
            assert values(one.train) == pytest.approx(values(two.train), rel=0 if other is strategy else 1e-6)
            assert values(one.evaluation) == pytest.approx(values(two.evaluation), rel=0 if other is strategy else 1e-6)


def test_they_are_goals_and_a_restored_task_has_them(tmp_path: Path) -> None:
    best = Goal(metric="test_auc", mode="max")
    options = replace(OPTIONS, model_dir=tmp_path, keep_best=best)
    result = Trainer(Classes(), options, [EarlyStop(best, patience=5)]).run()
    task = Classes()
    restored = restore(tmp_path, task, goal=best)
    assert restored.history[-1].evaluation["auc"] == max(epoch.evaluation["auc"] for epoch in result.history)
    assert values(restored.history[-1].evaluation) == pytest.approx(on_whole_set(task), rel=1e-6)
    # A run that only begins with the weights of this one counts from zero.
    warm = Trainer(Classes(), replace(OPTIONS, epochs=1, warm_start=tmp_path)).run()
    assert 0 < warm.history[0].train["auc"] <= 1

    class Fewer(Classes):
        def build(self) -> None:
            super().build()
            del self.metrics["recall"]

    with pytest.raises(CheckpointError, match="made with other models, optimizers or metrics"):
        Trainer(Fewer(), options).run()


class Hidden(Classes):
    """The metrics are used, and nobody was told of them."""

    @property
    def models(self) -> Mapping[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}


class InModel(Hidden):
    """A model that has the metric finds it in its own attributes, but does not reset it."""

    def build(self) -> None:
        super().build()
        self.model.recall = self.metrics["recall"]
        self.metrics = {"recall": self.model.recall}


class Returned(Classes):
    def eval_step(self, batch: Any) -> Mapping[str, Any]:
        return {**super().eval_step(batch), "auc": self.metrics["auc"]}


class Read(Classes):
    def eval_step(self, batch: Any) -> Mapping[str, Any]:
        return {**super().eval_step(batch), "auc": self.metrics["auc"].result()}


class Late(Classes):
    def build(self) -> None:
        super().build()
        self.metrics["f1"] = keras.metrics.F1Score(average="macro")


class LateInEvaluation(Late):
    def train_step(self, batch: Any) -> Mapping[str, Any]:
        return {"loss": self.model(batch[0])[:, 0]}


class ByClass(Classes):
    def build(self) -> None:
        super().build()
        self.metrics["f1"] = keras.metrics.F1Score()
        self.metrics["f1"].update_state(tf.zeros([1, CLASSES]), tf.zeros([1, CLASSES]))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            Hidden,
            r"train_step of task 'classes' updates the metric variable '.*', which is never reset: .* attribute of",
        ),
        (InModel, r"train_step of task 'classes' updates the metric variable 'recall.*', which is never reset"),
        (Returned, r"returned the metric object 'auc'; expected tensors. Call its update_state"),
        (Read, r"eval_step of task 'classes' returns a value 'auc', which is the name of a metric"),
        (Late, r"train_step of task 'classes' created 4 variables; .* keras.metrics.F1Score, call its update_state"),
        (LateInEvaluation, r"eval_step of task 'classes' created 4 variables"),
        (ByClass, r"metric 'f1' has the shape \(3,\); expected a scalar, .*average='macro'"),
    ],
)
@pytest.mark.parametrize("replicas", [1, 2])
def test_what_would_be_wrong_is_refused_before_training(task: type[Classes], message: str, replicas: int) -> None:
    events: list[Event] = []
    with pytest.raises(ConfigurationError, match=message):
        Trainer(task(), OPTIONS, [events.append], strategy=two_replicas() if replicas == 2 else None).run()
    assert not events


def test_a_metric_made_before_the_strategy_is_refused() -> None:
    class Early(Classes):
        early = keras.metrics.Recall()

        def build(self) -> None:
            super().build()
            self.metrics["recall"] = self.early

    with pytest.raises(ConfigurationError, match="metric 'recall' of task 'classes' was made outside .* build()"):
        Trainer(Early(), OPTIONS, strategy=two_replicas()).run()


def test_a_mistake_in_eval_step_costs_no_epoch() -> None:
    class Wrong(Classes):
        def eval_step(self, batch: Any) -> Mapping[str, Any]:
            return {"loss": tf.matmul(batch[0], tf.zeros([CLASSES, 1]))[:, 0]}

    class NoLength(Classes):
        def eval_dataset(self, request: InputRequest) -> tf.data.Dataset:
            return super().eval_dataset(request).repeat()

    events: list[Event] = []
    with pytest.raises(ConfigurationError, match="eval_step of task 'classes' cannot run on its input"):
        Trainer(Wrong(), OPTIONS, [events.append]).run()
    with pytest.raises(ConfigurationError, match="eval_dataset of task 'classes' is endless"):
        Trainer(NoLength(), OPTIONS, [events.append]).run()
    for options, actions in (
        (replace(OPTIONS, model_dir=Path("unused"), keep_best=Goal(metric="acuracy", mode="max")), []),
        (OPTIONS, [EarlyStop(Goal(metric="acuracy", mode="max"), patience=1)]),
    ):
        with pytest.raises(
            ConfigurationError,
            match="has no 'acuracy'; it has test_auc, test_f1, test_loss, test_precision, test_recall",
        ):
            Trainer(Classes(), options, [*actions, events.append]).run()
    assert not events
