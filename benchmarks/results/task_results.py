"""What ``benchmarks.results`` runs for each task but ``fashion``, and which figure it reads off."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras

from benchmarks.results.edit_distance import edit_accuracy
from benchmarks.results.garments import rendered_folder
from benchmarks.results.recipe import SEED, ProcessorLimit, Recipe, Run, run_task
from benchmarks.results.transfer_gain import DRAWS, STEPS, measure_gain, small_transfer
from modelyard.training import InputRequest, ProgressBar, SupervisedTask
from modelyard.training.data import FashionMnist, load_fashion_mnist
from modelyard.training.tasks import (
    CapsnetTask,
    CycleganTask,
    DcganTask,
    GanTask,
    LadderTask,
    LinearTask,
    MamlTask,
    MlpTask,
    NasTask,
    SiameseTask,
    SiameseTextTask,
    VaeTask,
)

#: Eager and compiled in turn, so often.
_ROUNDS = 5
#: Of ``maml`` with images.
_FEW_SHOT: Mapping[str, Any] = {"max_steps": 150, "batch_size": 8}
#: Of the best children of ``nas``.
_RETRAINED_EPOCHS = 2


def measure(name: str) -> dict[str, Any]:
    """Runs a task and makes its row.

    Args:
        name: Of the task.
    """
    recipe = RECIPES[name]
    run = run_task(recipe.make(load_fashion_mnist(allow_subset=False)), recipe.options, ProgressBar())
    measured, reached = recipe.read(run)
    epochs = len(run.result.history)
    parts = [
        f"{epochs} epoch{'s' if epochs > 1 else ''}, {run.result.step:,} steps of {run.result.config['batch_size']}",
        recipe.values,
        recipe.data or run.result.data,
    ]
    return {
        "run": "; ".join(part for part in parts if part),
        "measured": measured,
        "reached": reached,
        "seconds": run.seconds,
    }


def _linear(run: Run) -> tuple[str, bool]:
    slope, intercept = run.task.parameters
    loss = run.by_epoch("loss")[-1]
    near = abs(slope - 3.23) < 0.1 and abs(intercept - 1.80) < 0.1 and abs(loss - 1.14) < 0.1
    return f"W = {slope:.2f}, b = {intercept:.2f}, loss {loss:.2f}; seed {SEED}", near


def _mlp(run: Run) -> tuple[str, bool]:
    data = load_fashion_mnist(allow_subset=False)
    few = replace(data, train_images=data.train_images[:6400], train_labels=data.train_labels[:6400])
    rates: dict[str, list[float]] = {"eager": [], "step": []}
    for _ in range(_ROUNDS):
        for loop, measured in rates.items():
            # The second epoch of each: tracing and warming up are over.
            again = run_task(MlpTask(data=few), {"epochs": 2, "loop": loop}).result.history[-1]
            measured.append(again.examples_per_second)
    ratio = statistics.median(step / eager for eager, step in zip(rates["eager"], rates["step"], strict=True))
    constant = run_task(MlpTask(data=data, decay=1.0), RECIPES["mlp"].options).by_epoch("accuracy")
    accuracy = run.by_epoch("accuracy")
    mine, others = (", ".join(f"{100 * value:.1f}" for value in values) for values in (accuracy, constant))
    text = f"test accuracy by epoch {mine} %, with a constant step size {others} %; compiled step {ratio:.1f} times as "
    text += f"fast as eager, median of {_ROUNDS} rounds in turn"
    return text, ratio >= 3 and accuracy[-1] > max(accuracy) - 0.001


def _vae(run: Run) -> tuple[str, bool]:
    losses, weighted = run.by_epoch("loss"), run.by_epoch("importance_weighted_loss")
    bounds = ", ".join(f"{-loss:.1f}" for loss in losses)
    return (
        f"ELBO by epoch, test images, 50 samples of z: {bounds} nats; importance-weighted bound in the end "
        f"{-weighted[-1]:.1f}",
        losses == sorted(losses, reverse=True) and weighted[-1] < losses[-1],
    )


def _siamese(run: Run) -> tuple[str, bool]:
    accuracy = run.by_epoch("accuracy")[-1]
    return f"{accuracy:.3f}", accuracy >= 0.85


def _siamese_text(run: Run) -> tuple[str, bool]:
    accuracy = run.by_epoch("accuracy")[-1]
    (first, second, same), *_ = run.task.test.batches(InputRequest(batch_size=10_000), training=False)
    distance = edit_accuracy(first.numpy(), second.numpy(), same.numpy())
    return f"{accuracy:.3f}; Levenshtein's distance at its best threshold {distance:.3f}", accuracy > distance + 0.1


def _ladder(run: Run) -> tuple[str, bool]:
    ladder, supervised = run.by_epoch("accuracy")[-1], run.by_epoch("supervised_accuracy")[-1]
    return f"{100 * ladder:.1f} % against {100 * supervised:.1f} % of the supervised net", ladder > supervised


def _capsnet(run: Run) -> tuple[str, bool]:
    accuracy = run.by_epoch("accuracy")[-1]
    # The margin is small: other images of the same number say by how much it depends on which.
    other = run_task(_capsnet_task(_first(load_fashion_mnist(allow_subset=False))), RECIPES["capsnet"].options)
    text = f"{100 * accuracy:.1f} % after {run.result.step} steps"
    text += f"; on the first 2,000 + 1,000 images of the full data set {100 * other.by_epoch('accuracy')[-1]:.1f} %"
    return text, accuracy >= 0.75


def _gan(run: Run) -> tuple[str, bool]:
    before, after = run.ends("frechet")
    discriminator, generator = run.by_epoch("discriminator_loss")[-1], run.by_epoch("generator_loss")[-1]
    balanced = 0.1 < discriminator < 1.0 and 0.3 < generator < 4.0
    return (
        f"{before:.1f} to {after:.1f}; test losses: discriminator {discriminator:.2f}, generator {generator:.2f}",
        after < before / 2 and balanced,
    )


def _dcgan(run: Run) -> tuple[str, bool]:
    text, good = _gan(run)
    # By processor time: beside other work, the clock would measure that.
    seconds = run.processor_seconds
    other = run_task(GanTask(data=load_fashion_mnist(allow_subset=False)), {"epochs": 10_000}, ProcessorLimit(seconds))
    mine, theirs = run.ends("frechet")[1], other.ends("frechet")[1]
    text += (
        f"; both in {seconds:.0f} s of processor time, where `gan` comes to {theirs:.1f} in {other.result.step:,} steps"
    )
    book = run_task(DcganTask(data=load_fashion_mnist(), variant="cookbook", width=0.125), RECIPES["dcgan"].options)
    before, after = book.ends("frechet")
    text += f"; variant `cookbook` {before:.1f} to {after:.1f}"
    return text, good and mine < theirs and after < before / 2


def _maml(run: Run) -> tuple[str, bool]:
    mine, first, joint = (run.by_epoch(f"{name}loss")[-1] for name in ("", "first_order_", "joint_"))
    text = f"{mine:.3f}, first-order {first:.3f}, joint {joint:.3f}: {joint / mine:.1f} times lower than joint"
    data = load_fashion_mnist(allow_subset=False)
    images = run_task(MamlTask(data=data, problem="fashion"), {**_FEW_SHOT, "epochs": None})
    start, *_, last = images.history.values()
    said = {
        name: f"{last[f'{prefix}accuracy']:.3f} ± {last[f'{prefix}accuracy_interval']:.3f}"
        for name, prefix in (("second-order", ""), ("first-order", "first_order_"), ("joint", "joint_"))
    }
    text += f"; 5-way 1-shot, `problem=fashion`, after {images.result.step} steps on 5 classes, 200 problems of the"
    text += f" other 5, 95 % intervals: accuracy {', '.join(f'{name} {value}' for name, value in said.items())}, the"
    text += f" first {100 * (last['accuracy'] - 0.2):.0f} points above chance; before training {start['accuracy']:.3f},"
    text += f" nearest image by pixels {last['nearest_accuracy']:.3f}"
    learned = last["accuracy"] - last["accuracy_interval"] > max(start["accuracy"], last["joint_accuracy"], 0.4)
    return text, joint >= 3 * mine and learned


def _cyclegan(run: Run) -> tuple[str, bool]:
    before, after = run.ends("cycle")
    drawing, garment = run.ends("drawing_error")[1], run.ends("garment_error")[1]
    return (
        f"{before:.3f} to {after:.3f}; mean absolute error against the true image: drawings {drawing:.3f}, "
        f"garments {garment:.3f}",
        after < before / 2,
    )


def _nas(run: Run) -> tuple[str, bool]:
    last = list(run.history.values())[-1]
    quarter, random = last["last_quarter_reward"], last["mean_random_reward"]
    retrained = {at_random: _retrained(run.task, at_random=at_random) for at_random in (False, True)}
    text = (
        f"last quarter's mean {quarter:.3f} against {random:.3f}, {len(run.task.rewards)} children each; best of them"
    )
    text += f" {last['best_reward']:.3f} against {last['best_random_reward']:.3f}; both trained on all images for"
    text += f" {_RETRAINED_EPOCHS} epochs: test accuracy {retrained[False]:.3f} against {retrained[True]:.3f}"
    return f"{text}; best child {run.task.best_child}", quarter > random


def _retrained(task: NasTask, *, at_random: bool) -> float:
    """Test accuracy of the best child of the controller, or of chance, trained on all images from nothing."""
    again = SupervisedTask(
        lambda: task.best_network(at_random=at_random),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        train=task.train,
        test=task.test,
        metrics=["accuracy"],
    )
    return run_task(again, {"epochs": _RETRAINED_EPOCHS}).by_epoch("accuracy")[-1]


def _transfer(run: Run) -> tuple[str, bool]:
    accuracy = run.by_epoch("accuracy")[-1]
    gain = measure_gain(load_fashion_mnist(allow_subset=False))
    # Three classes of the same size: a third is chance.
    text = f"learns from JPEG files: test accuracy {accuracy:.3f}, chance 0.333; with a network that was trained on"
    text += f" five classes, frozen, five others in {STEPS} steps of 16, mean of {DRAWS} draws, against all of it from"
    text += " nothing: "
    said = (f"{count} images of each {mine:.3f} against {other:.3f}" for count, (mine, other) in gain.items())
    frozen, nothing = gain[10]
    return text + ", ".join(said), accuracy > 0.75 and frozen > nothing + 0.05


def _subset() -> FashionMnist:
    """The 2,000 + 1,000 images that ship with modelyard, those of the tests."""
    before = os.environ.get("MODELYARD_DATA")
    os.environ["MODELYARD_DATA"] = "subset"
    try:
        return load_fashion_mnist()
    finally:
        if before is None:
            del os.environ["MODELYARD_DATA"]
        else:
            os.environ["MODELYARD_DATA"] = before


def _first(data: FashionMnist) -> FashionMnist:
    return replace(
        data,
        train_images=data.train_images[:2000],
        train_labels=data.train_labels[:2000],
        test_images=data.test_images[:1000],
        test_labels=data.test_labels[:1000],
    )


def _capsnet_task(data: FashionMnist) -> CapsnetTask:
    return CapsnetTask(data=data, filters=32, capsule_maps=8)


RECIPES: Mapping[str, Recipe] = {
    "capsnet": Recipe(
        make=lambda data: _capsnet_task(_subset()),
        options={"batch_size": 50, "epochs": 6},
        values="32 filters, 8 maps of capsules",
        must_show="test accuracy at least 75 % on the subset that ships",
        read=_capsnet,
    ),
    "cyclegan": Recipe(
        make=lambda data: CycleganTask(data=data),
        options={"epochs": 1},
        must_show="cycle loss falls by half",
        read=_cyclegan,
    ),
    "dcgan": Recipe(
        make=lambda data: DcganTask(data=data, width=0.125),
        options={"epochs": 2},
        values="an eighth of the width",
        must_show="Fréchet distance falls by half, losses in balance, better than `gan` at equal processor time",
        read=_dcgan,
    ),
    "gan": Recipe(
        make=lambda data: GanTask(data=data),
        must_show="Fréchet distance falls by half, losses in balance",
        read=_gan,
    ),
    "ladder": Recipe(
        make=lambda data: LadderTask(data=data),
        options={"epochs": 2},
        must_show="100 labels: test accuracy above that of the supervised net on the same 100",
        read=_ladder,
    ),
    "linear": Recipe(
        make=lambda data: LinearTask(),
        must_show="W = 3.23, b = 1.80, loss 1.14 after 10 epochs, each within 0.1",
        read=_linear,
    ),
    "maml": Recipe(
        make=lambda data: MamlTask(),
        must_show="loss after 1 inner step on new problems at least 3 times lower than of a jointly trained net; from "
        "one image of each of 5 new classes, accuracy above 0.4 (0.2 is chance), and above that of a joint and of an "
        "untrained net",
        read=_maml,
    ),
    "mlp": Recipe(
        make=lambda data: MlpTask(data=data),
        options={"epochs": 5},
        must_show="test accuracy ends within 0.1 % of its best; compiled step at least 3 times as fast as eager",
        read=_mlp,
    ),
    "nas": Recipe(
        make=lambda data: NasTask(data=data, child_steps=30, learning_rate=0.03),
        must_show="mean reward of the last quarter above random search's mean",
        options={"epochs": 4},
        values="children trained for 30 steps, the controller with a step size of 0.03",
        read=_nas,
    ),
    "siamese": Recipe(
        make=lambda data: SiameseTask(data=data),
        options={"epochs": 1},
        must_show="verification accuracy on unseen pairs at least 0.85",
        read=_siamese,
    ),
    "siamese_text": Recipe(
        make=lambda data: SiameseTextTask(),
        must_show="verification accuracy on pairs of unseen titles above that of an edit distance",
        read=_siamese_text,
    ),
    "transfer": Recipe(
        make=lambda data: small_transfer(rendered_folder(data)),
        options={"epochs": 5},
        values="MobileNetV2 at 32 x 32 from random weights, all layers trained",
        data="900 + 900 JPEG files of 28 x 28 to 36 x 36 in 3 classes",
        must_show="works from a folder of real JPEG files; from 10 images of each of 5 new classes, accuracy by a "
        "network that knows 5 others more than 5 points above that from nothing",
        read=_transfer,
    ),
    "vae": Recipe(
        make=lambda data: VaeTask(data=data),
        options={"epochs": 5},
        values="z of 2",
        must_show="negative ELBO by epoch falling",
        read=_vae,
    ),
}
