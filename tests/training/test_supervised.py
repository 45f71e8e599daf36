"""The short form: a task without a class, a GAN in one page, and what a task has where it says nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from modelyard.artifact import SignatureFunction, TensorSpec, VerificationData, read_manifest
from modelyard.errors import ConfigurationError, TrainingError
from modelyard.export import ExportOptions
from modelyard.training import SupervisedTask, Task, Trainer, average_loss, minimize, restore

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4)).astype(np.float32)
LABELS = (X @ RNG.normal(size=(4, 3))).argmax(axis=1)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
QUICK = ExportOptions(formats=("saved_model",), min_examples=16, latency_calls=10, measure_seconds=0.1)


def make_model() -> keras.Model:
    return keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dropout(0.1), keras.layers.Dense(3)])


def classes(**options: Any) -> SupervisedTask:
    given = {"loss": LOSS, "train": (X[:90], LABELS[:90]), "test": (X[90:], LABELS[90:]), **options}
    return SupervisedTask(make_model, optimizer=keras.optimizers.Adam(0.05), **given)


def test_a_classifier_is_trained_measured_restored_and_exported(tmp_path: Path) -> None:
    metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(k=2)]
    task = classes(metrics=metrics)
    run = Trainer(task, epochs=4, batch_size=16, model_dir=str(tmp_path / "run")).run()
    assert run.metrics["test_accuracy"] > 0.8
    logits = np.asarray(task.model(X[90:]))
    own = np.mean(logits.argmax(axis=1) == LABELS[90:])
    assert run.metrics["test_accuracy"] == pytest.approx(own)
    second = np.mean([label in row for label, row in zip(LABELS[90:], np.argsort(-logits)[:, :2], strict=True)])
    assert run.metrics["test_sparse_top_k_categorical_accuracy"] == pytest.approx(second)

    other = classes(metrics=metrics)
    restore(tmp_path / "run", other)
    np.testing.assert_array_equal(np.asarray(other.model(X)), np.asarray(task.model(X)))

    report = run.export(tmp_path / "models" / "classes", examples=60, options=QUICK)
    manifest = read_manifest(report.version.path)
    assert manifest.source.metrics["test_accuracy"] == pytest.approx(own)
    assert manifest.formats["saved_model"].verify.examples == 60
    served = tf.saved_model.load(str(report.version.path)).signatures["serving_default"]
    answer = served(x=tf.constant(X[90:]))
    assert set(answer) == {"class_id", "probabilities"}
    np.testing.assert_allclose(answer["probabilities"], tf.nn.softmax(logits), atol=1e-6)


def test_a_regularizer_counts_in_training_alone() -> None:
    """With layers whose states an evaluation must not change, and a metric that it must."""

    def regularized() -> keras.Model:
        dense = keras.layers.Dense(8, kernel_regularizer=keras.regularizers.L2(0.1))
        layers = [dense, keras.layers.BatchNormalization(), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((4,)), *layers])

    y = X.sum(axis=1, keepdims=True)
    task = SupervisedTask(
        regularized, loss="mse", train=(X[:90], y[:90]), test=(X[90:], y[90:]), optimizer=keras.optimizers.Adam(0.05),
        metrics=[keras.metrics.MeanAbsoluteError(name="mae")],
    )  # fmt: skip
    run = Trainer(task, epochs=10, batch_size=16).run()
    outputs = np.asarray(task.model(X[90:], training=False))
    assert run.metrics["test_mae"] == pytest.approx(np.abs(outputs - y[90:]).mean(), rel=1e-5)
    assert run.metrics["test_loss"] == pytest.approx(((outputs - y[90:]) ** 2).mean(), rel=1e-5)
    assert run.metrics["test_loss"] < 0.5 * y[90:].var()
    assert np.abs(np.asarray(task.model.layers[0].kernel)).max() < 1.0


def test_models_in_containers_of_any_kind_are_kept(tmp_path: Path) -> None:
    class Many(Task):
        train = test = (X, X.sum(axis=1, keepdims=True))

        def build(self) -> None:
            def make() -> keras.Model:
                return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

            self.model = make()
            self.first, self.second = {"net": make()}, {"net": make(), "share": 0.5}
            self.nested = {"deep": [make()]}
            self.optimizer = keras.optimizers.Adam(0.05)

        def train_step(self, batch: Any) -> Mapping[str, Any]:
            x, y = batch
            nets = [self.model, self.first["net"], self.second["net"], self.nested["deep"][0]]
            with tf.GradientTape() as tape:
                losses = tf.square(sum(net(x) for net in nets) - y)[:, 0]
                loss = average_loss(losses)
            weights = [weight for net in nets for weight in net.trainable_variables]
            minimize(loss, weights, optimizer=self.optimizer, tape=tape)
            return {"loss": losses}

    run = Trainer(Many(), epochs=20, batch_size=30, model_dir=tmp_path).run()
    assert run.metrics["test_loss"] < 0.1
    assert set(run.task.models) == {"model", "first_net", "second_net", "deep_0", "optimizer"}
    again = Many()
    restore(tmp_path, again)
    for name in ("model", "first_net", "second_net", "deep_0"):
        for mine, theirs in zip(again.models[name].weights, run.task.models[name].weights, strict=True):
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


class Subclass(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3)

    @tf.function
    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(self.dense(x))


def nested() -> keras.Model:
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3, activation="softmax")]
    return keras.Sequential([keras.Input((4,)), keras.layers.Rescaling(1.0), keras.Sequential(layers)])


def functional() -> keras.Model:
    x = keras.Input((4,))
    return keras.Model(x, keras.ops.softmax(keras.layers.Dense(3)(x)))


def shares() -> keras.Model:
    x = keras.Input((4,))
    positive = keras.ops.exp(keras.layers.Dense(3)(x))
    return keras.Model(x, positive / keras.ops.sum(positive, axis=-1, keepdims=True))


@pytest.mark.parametrize(
    ("make", "loss"),
    [
        (nested, lambda labels, outputs: keras.losses.sparse_categorical_crossentropy(labels, outputs)),
        (functional, lambda labels, outputs: keras.losses.sparse_categorical_crossentropy(labels, outputs)),
        (Subclass, lambda labels, outputs: keras.losses.sparse_categorical_crossentropy(labels, outputs)),
        (shares, "sparse_categorical_crossentropy"),
        (shares, keras.losses.SparseCategoricalCrossentropy()),
    ],
)
def test_probabilities_are_published_as_the_model_gives_them(make: Callable[[], keras.Model], loss: Any) -> None:
    """However the softmax is wrapped, and where only the loss says that the outputs are probabilities."""
    data = (X[:90], LABELS[:90]), (X[90:], LABELS[90:])
    task = SupervisedTask(make, loss=loss, train=data[0], test=data[1], optimizer=keras.optimizers.Adam(0.05))
    Trainer(task, epochs=8, batch_size=16).run()
    expected = np.asarray(task.model(X[90:]))
    assert np.mean(expected.argmax(axis=1) == LABELS[90:]) > 0.7
    np.testing.assert_allclose(task.predict(tf.constant(X[90:]))["probabilities"], expected, atol=1e-6)
    signature = task.signatures()["serving_default"]
    assert isinstance(signature, SignatureFunction)
    traced = tf.function(signature.function)(**{signature.inputs[0].name: tf.constant(X[90:])})
    np.testing.assert_allclose(traced["probabilities"], expected, atol=1e-6)


def test_a_step_of_the_user_s_and_a_model_that_is_there() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    seen: list[bool] = []

    def step(task: SupervisedTask, batch: Any) -> Mapping[str, Any]:
        inputs, targets = batch
        seen.append(task.training)
        with tf.GradientTape() as tape:
            outputs = task.model(inputs, training=task.training)
            losses = task.losses(targets, outputs)
            loss = average_loss(losses)
        minimize(loss, task.model.trainable_variables, optimizer=task.optimizer, tape=tape)
        return {"loss": losses, **task.measure(targets, outputs)}

    y = X.sum(axis=1, keepdims=True)
    metrics = {
        "error": keras.metrics.MeanSquaredError(),
        "far": lambda labels, outputs: tf.reduce_mean(tf.square(labels - outputs), axis=-1),
    }
    task = SupervisedTask(
        model, loss="mse", train=(X, y), test=(X, y), step=step, metrics=metrics, optimizer=keras.optimizers.Adam(0.05)
    )
    weights = Trainer(task, epochs=6, batch_size=16).run()
    assert weights.metrics["test_loss"] < 0.5 * weights.history[0].evaluation["loss"]
    assert task.model is model and set(seen) == {True, False}
    # An evaluation changes nothing: the last one is that of the weights as they are now.
    now = float(tf.reduce_mean(tf.square(model(X) - y)))
    assert weights.metrics["test_loss"] == pytest.approx(now, rel=1e-5)
    assert weights.metrics["test_error"] == pytest.approx(weights.metrics["test_far"], rel=1e-5)


def test_weights_of_examples_count_in_the_loss() -> None:
    """Those of weight 0 are of another line, which is not learned."""
    y = X.sum(axis=1, keepdims=True)
    wrong = np.arange(len(X)) % 2 == 0
    data = (X, np.where(wrong[:, None], -y, y), (~wrong).astype(np.float32))
    task = SupervisedTask(
        lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]),
        loss="mse", train=data, test=(X, y), optimizer=keras.optimizers.Adam(0.05),
    )  # fmt: skip
    run = Trainer(task, epochs=12, batch_size=16).run()
    assert run.metrics["test_loss"] < 0.1 * run.history[0].evaluation["loss"]


@pytest.mark.parametrize("batch_size", [8, 12])
def test_weights_of_sequences_are_those_of_the_examples(batch_size: int) -> None:
    """Also where a batch has as many examples as a sequence has places."""
    x = RNG.normal(size=(48, 8, 1)).astype(np.float32)
    wrong = np.arange(len(x)) % 2 == 0
    y = np.where(wrong[:, None, None], np.float32(50.0), 2 * x)
    data = (x, y, (~wrong).astype(np.float32))
    task = SupervisedTask(
        lambda: keras.Sequential([keras.Input((8, 1)), keras.layers.Dense(1)]),
        loss="mse", train=data, test=data, optimizer=keras.optimizers.Adam(0.1),
        metrics=[keras.metrics.MeanSquaredError()],
    )  # fmt: skip
    run = Trainer(task, epochs=20, batch_size=batch_size, eval_batch_size=batch_size).run()
    kernel, bias = task.model.get_weights()
    np.testing.assert_allclose([kernel[0, 0], bias[0]], [2.0, 0.0], atol=0.1)
    # The loss is the mean over all examples, those of weight 0 included; the metric is that of the weights.
    assert run.metrics["test_loss"] == pytest.approx(run.metrics["test_mean_squared_error"] / 2, rel=1e-4)


@pytest.mark.parametrize("form", ["classes", "column", "one-hot"])
def test_accuracy_of_sequences_is_that_of_their_places(form: str) -> None:
    x = RNG.integers(0, 5, size=(64, 6))
    truth = (x + 1) % 5
    forms: dict[str, Any] = {
        "classes": truth,
        "column": truth[..., np.newaxis],
        "one-hot": np.eye(5, dtype=np.float32)[truth],
    }
    layers = [keras.Input((6,), dtype="int32"), keras.layers.Embedding(5, 8), keras.layers.Dense(5)]
    loss = keras.losses.CategoricalCrossentropy(from_logits=True) if form == "one-hot" else LOSS
    task = SupervisedTask(
        lambda: keras.Sequential(layers),
        loss=loss, train=(x[:48], forms[form][:48]), test=(x[48:], forms[form][48:]), metrics=["accuracy"],
        optimizer=keras.optimizers.Adam(0.02),
    )  # fmt: skip
    run = Trainer(task, epochs=6, batch_size=16).run()
    right = np.asarray(task.model(x[48:])).argmax(axis=-1) == truth[48:]
    assert run.metrics["test_accuracy"] == pytest.approx(right.mean())
    assert run.metrics["test_accuracy"] > 0.9 > run.history[0].train["accuracy"]


class Gan(Task):
    """A generator and a discriminator of points around another one, with an optimizer each."""

    train = test = RNG.normal((1.5, -1.0), 0.3, size=(256, 2)).astype(np.float32)

    def build(self) -> None:
        relu, layers = {"activation": "relu"}, keras.layers
        self.generator = keras.Sequential([keras.Input((3,)), layers.Dense(16, **relu), layers.Dense(2)])
        self.discriminator = keras.Sequential([keras.Input((2,)), layers.Dense(16, **relu), layers.Dense(1)])
        self.optimizers = [keras.optimizers.Adam(1e-2, beta_1=0.5) for _ in range(2)]
        for optimizer, model in zip(self.optimizers, (self.generator, self.discriminator), strict=True):
            optimizer.build(model.trainable_variables)
        (self.random,) = tf.random.get_global_generator().split(1)

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        z = self.random.normal([tf.shape(batch)[0], 3])
        with tf.GradientTape() as tape:
            real, made = self.discriminator(batch)[:, 0], self.discriminator(self.generator(z))[:, 0]
            judged = tf.nn.softplus(-real) + tf.nn.softplus(made)
            loss = average_loss(judged)
        minimize(loss, self.discriminator.trainable_variables, optimizer=self.optimizers[1], tape=tape)
        with tf.GradientTape() as tape:
            fooling = tf.nn.softplus(-self.discriminator(self.generator(z))[:, 0])
            loss = average_loss(fooling)
        minimize(loss, self.generator.trainable_variables, optimizer=self.optimizers[0], tape=tape)
        return {"loss": judged, "generator_loss": fooling}

    def signatures(self) -> Mapping[str, Any]:
        z = TensorSpec(name="z", dtype="float32", shape=(-1, 3))
        return {"serving_default": SignatureFunction(inputs=(z,), function=self.generate)}

    def generate(self, z: Any) -> Mapping[str, Any]:
        return {"point": self.generator(z)}

    def verification_data(self, count: int) -> VerificationData:
        z = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
        return VerificationData(inputs={"serving_default": {"z": z}})


def distance(task: Gan) -> float:
    """Of the middle of what it makes from the middle of what it has seen."""
    points = np.asarray(task.generator(task.verification_data(500).inputs["serving_default"]["z"]))
    return float(np.linalg.norm(points.mean(axis=0) - task.train.mean(axis=0)))


def test_a_gan_of_two_optimizers_in_a_page_trains_and_is_exported(tmp_path: Path) -> None:
    assert len(inspect.getsource(Gan).splitlines()) <= 60
    task, fresh = Gan(), Gan()
    result = Trainer(task, epochs=12, batch_size=32, model_dir=tmp_path / "run").run()
    fresh.build()
    assert distance(task) < 0.5 * distance(fresh)
    restored = Gan()
    restore(tmp_path / "run", restored)
    assert distance(restored) == distance(task)
    report = result.export(tmp_path / "models" / "gan", examples=32, options=QUICK)
    assert read_manifest(report.version.path).source.task == "gan"


# ---- what is refused ------------------------------------------------------------------------------------------------


class ByHand(Task):
    """Updates a plain variable, in evaluation too."""

    train = test = (X, LABELS)

    def build(self) -> None:
        self.weight = tf.Variable(1.0)

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        self.weight.assign_sub(0.1)
        return {"loss": self.weight * batch[0][:, 0]}


class AlwaysTraining(ByHand):
    """Has dropout in evaluation."""

    def build(self) -> None:
        self.dropout = keras.layers.Dropout(0.5)

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        return {"loss": self.dropout(batch[0], training=True)[:, 0]}


class NoData(ByHand):
    """Says nothing of data."""

    train = test = None  # type: ignore[assignment]


def one_output(task: SupervisedTask, batch: Any) -> Mapping[str, Any]:
    """A step that measures the first output alone."""
    outputs = task.model(batch[0])[:, :1]
    return {"loss": outputs[:, 0], **task.measure(batch[1], outputs)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (ByHand, "is its step of evaluation as well, and changes variables in it"),
        (AlwaysTraining, "training=self.training"),
        (NoData, "has no train data. Give it train="),
        (lambda: classes(loss=lambda labels, outputs: tf.constant(0.0)), "loss of task 'supervised' is a scalar"),
        (lambda: classes(metrics=["nothing"]), "Keras does not know"),
        (
            lambda: classes(metrics=["auc"]),
            r"'auc' of task 'supervised' cannot compare labels int\d\d \[1\] with outputs",
        ),
        (lambda: classes(metrics=["accuracy", "accuracy"]), "Two metrics are called 'accuracy'"),
        (lambda: classes(metrics={"mine": "nothing"}), "Received metric 'nothing', which Keras does not know"),
        (lambda: classes(loss=None), "Received no loss"),
        (lambda: SupervisedTask(None, loss=LOSS, train=None, test=None), "model is None; expected a Keras model"),
        (lambda: SupervisedTask("a.keras", loss=LOSS, train=None, test=None), "model is 'a.keras'; expected"),
        (
            lambda: SupervisedTask(keras.layers.Dense(3), loss=LOSS, train=None, test=None),
            "model is <Dense name=.*; expected a Keras model, or a function that makes one",
        ),
        (
            lambda: SupervisedTask(lambda: None, loss=LOSS, train=None, test=None),
            "makes the model of task 'supervised' returned None; expected a Keras model",
        ),
        (
            lambda: classes(
                loss=lambda labels, outputs: outputs[:, 0], metrics=["accuracy"], train=(X, X), test=(X, X)
            ),
            r"'accuracy' received labels of shape \(None, 4\) for outputs of shape \(None, 3\); expected classes of",
        ),
        (
            lambda: classes(loss=lambda labels, outputs: outputs[:, 0], step=one_output, metrics=["accuracy"]),
            "'accuracy' is for an output for each class; of one output use keras.metrics.BinaryAccuracy",
        ),
        (
            lambda: classes(train=(X, LABELS, np.ones([len(X), 1])), test=(X, LABELS)),
            r"Received weights of shape \(None, 1\) for losses of shape \(None,\); expected one for each example",
        ),
        (lambda: classes(metrics=["accuracy"], step=lambda task, batch: {"loss": batch[0]}), "leaves its metrics out"),
    ],
)
def test_what_would_go_wrong_is_refused(make: Callable[[], Task], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Trainer(make(), epochs=1).run()


def test_metrics_come_alone_in_a_list_or_by_names_of_their_own() -> None:
    metric = keras.metrics.SparseCategoricalAccuracy
    for given, name in (
        ("accuracy", "accuracy"),
        (metric(), "sparse_categorical_accuracy"),
        ([metric], "sparse_categorical_accuracy"),
        ({"mine": "accuracy"}, "mine"),
        ({"mine": metric}, "mine"),
    ):
        assert set(Trainer(classes(metrics=given), max_steps=1).run().metrics) == {
            *("loss", name),
            *("test_loss", f"test_{name}"),
        }
    assert set(Trainer(classes(metrics=None), max_steps=1).run().metrics) == {"loss", "test_loss"}


class Above(keras.metrics.Metric):
    """How many first outputs are above a threshold, in as few words as Keras takes."""

    def __init__(self, threshold: float = 0.0, name: str = "above") -> None:
        super().__init__(name=name)
        self.threshold, self.mean = threshold, keras.metrics.Mean()

    def update_state(self, labels: Any, outputs: Any, sample_weight: Any = None) -> None:
        self.mean.update_state(tf.cast(outputs[:, 0] > self.threshold, tf.float32))

    def result(self) -> Any:
        return self.mean.result()


class WholeAbove(Above):
    """The same, which says what it was made with."""

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "threshold": self.threshold}


class OwnAdam(keras.optimizers.Adam):
    """Says nothing of what it was made with."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate)


def test_metrics_of_one_s_own_classes_are_made_again_as_they_were() -> None:
    found = Trainer(classes(metrics=[WholeAbove(-1e9)]), max_steps=1).run().metrics
    assert found["test_above"] == 1.0
    with pytest.raises(ConfigurationError, match=r"Above is made with threshold, which its get_config\(\) does not"):
        classes(metrics=[Above(-1e9)])
    with pytest.raises(ConfigurationError, match=r"OwnAdam is made with rate, .*get_config\(\), 'rate': \.\.\.}"):
        SupervisedTask(make_model, loss=LOSS, train=None, test=None, optimizer=OwnAdam(0.1))


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(ConfigurationError, match="TrainerOptions has no field 'epoch'; did you mean 'epochs'"):
        Trainer(classes(), epoch=3)
    task = classes()
    task.recipe = {"epoch": 3}  # type: ignore[misc]
    with pytest.raises(ConfigurationError, match="TrainerOptions has no field 'epoch'"):
        Trainer(task)
    with pytest.raises(ConfigurationError, match="has no validation data"):
        task.data_source("validation")
    with pytest.raises(AttributeError, match="has no 'model'. What build"):
        _ = classes().model
    with pytest.raises(TrainingError, match=r"call build\(\)"):
        _ = classes().exported
    task = SupervisedTask(make_model(), loss="mse", train=(X, X), test=(X, X))
    with pytest.raises(ConfigurationError, match="made before the run, which has .* precision mixed_bfloat16"):
        Trainer(task, epochs=1, precision="mixed_bfloat16").run()
    assert (ByHand.name, AlwaysTraining.name) == ("by_hand", "always_training")
