"""The trainings of the tasks' sources, run to the end, beside the figures that were published of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results.full_recipes import TASK_DEFAULTS, make
from benchmarks.results.transfer_gain import FULL_TEST, FULL_TRAIN, KNOWN, NEW, full_transfer
from modelyard.training import ProgressBar, Trainer, TrainerOptions, TrainResult
from modelyard.training.data import load_fashion_mnist
from modelyard.training.tasks import PictureLog

Measured = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Published:
    """What is known of a source's own result.

    Attributes:
        source: Whose figure it is.
        figure: As published; ``not published`` where there is none of this measure.
        same_data: Whether it is of the data that the task has here.
        differs: What else is not the same.
        read: Our figure, from the result of the run and the measurements at its end.
    """

    source: str
    figure: str
    same_data: bool
    differs: str
    read: Callable[[TrainResult, Measured], str]


def run_full(name: str, folder: Path, epochs: int | None = None) -> dict[str, Any]:
    """Runs what ``modelyard train NAME --full`` does, to its end; what a run there has done already is not done again.

    Args:
        name: Of the task.
        folder: For the runs, a folder each.
        epochs: After how many to end; all of the recipe's by default.

    Returns:
        What the page says of it.
    """
    data = load_fashion_mnist(allow_subset=False)
    task = full_transfer(data, folder / "transfer-base") if name == "transfer" else make(name, data)
    recipe = {**TASK_DEFAULTS, **task.recipe, **task.full_recipe}
    whole = recipe["epochs"]
    recipe["epochs"] = epochs or whole
    pictures = PictureLog(task, folder / name / "pictures", every_steps=10_000_000)
    options = TrainerOptions(**recipe, seed=0, model_dir=folder / name)
    result = Trainer(task, options, [ProgressBar(), pictures]).run()
    done = len(result.history)
    part = f" of {whole}" if done < whole else ""
    return {
        "run": f"{done} epochs{part}, {result.step:,} steps of {recipe['batch_size']}, seed 0",
        "measured": PUBLISHED[name].read(result, list(pictures.history.values())[-1] if pictures.history else {}),
    }


def full_runs_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The part of results.md about full recipes that were run to the end; empty where none was.

    Args:
        rows: By task; those with ``full_run`` have been run.
    """
    lines = [
        f"| `{name}` | {row['full_run']['run']} | {row['full_run']['measured']} | {of.figure} | {of.source} "
        f"| {'yes' if of.same_data else 'no'} | {of.differs} |"
        for name, row in sorted(rows.items())
        if "full_run" in row
        for of in (PUBLISHED[name],)
    ]
    if not lines:
        return ""
    return f"""
## The full recipes, run to the end

`modelyard train TASK --full`, with one seed, beside the figure of the task's source where it published one of the same
measure. Where the data differs, the two figures say nothing about each other.

| Task | Run | Here | There | Whose | Same data | What differs |
|---|---|---|---|---|---|---|
{chr(10).join(lines)}

Made with `python -m benchmarks.results --full-runs FOLDER TASK`.
"""


def _last(result: TrainResult, name: str) -> float:
    return result.history[-1].evaluation[name]


def _accuracy(result: TrainResult, _: Measured) -> str:
    return f"test accuracy {100 * _last(result, 'accuracy'):.2f} %"


def _verified(result: TrainResult, _: Measured) -> str:
    return f"verification accuracy on unseen pairs {100 * _last(result, 'accuracy'):.2f} %"


def _frechet(_: TrainResult, measured: Measured) -> str:
    return f"Fréchet distance {measured['frechet']:.1f}"


def _maml(result: TrainResult, _: Measured) -> str:
    mine, first, joint = (_last(result, f"{prefix}loss") for prefix in ("", "first_order_", "joint_"))
    return f"squared error after one step {mine:.3f}, first-order {first:.3f}, joint {joint:.3f}"


def _vae(result: TrainResult, _: Measured) -> str:
    weighted = -_last(result, "importance_weighted_loss")
    return f"ELBO {-_last(result, 'loss'):.1f} nats, importance-weighted bound {weighted:.1f}"


def _nas(result: TrainResult, measured: Measured) -> str:
    return (
        f"best child on the images that judge {measured['best_reward']:.3f}, of random search "
        f"{measured['best_random_reward']:.3f}; the controller's on test images {_last(result, 'accuracy'):.3f}"
    )


def _cycle(_: TrainResult, measured: Measured) -> str:
    return f"cycle loss {measured['cycle']:.3f}, error of drawings {measured['drawing_error']:.3f}"


_NONE = "not published"
PUBLISHED: Mapping[str, Published] = {
    "capsnet": Published(
        source="hackbansu/CapsNet_fashionMNIST, a Keras network after Sabour et al., 2017",
        figure="test accuracy 92.48 %",
        same_data=True,
        differs="90 epochs there",
        read=_accuracy,
    ),
    "cyclegan": Published(
        source="Zhu et al., 2017",
        figure=_NONE,
        same_data=False,
        differs="photographs at 256 x 256",
        read=_cycle,
    ),
    "dcgan": Published(
        source="Radford et al., 2015",
        figure=_NONE,
        same_data=False,
        differs="bedrooms, faces and ImageNet at 64 x 64",
        read=_frechet,
    ),
    "fashion": Published(
        source="TensorFlow's tutorial, 2018",
        figure="test accuracy 90.93 %",
        same_data=True,
        differs="nothing known but the seed",
        read=_accuracy,
    ),
    "gan": Published(
        source="Goodfellow et al., 2014",
        figure=_NONE,
        same_data=False,
        differs="digits; the paper has a likelihood by Parzen windows",
        read=_frechet,
    ),
    "maml": Published(
        source="Finn et al., 2017",
        figure="not published as a number",
        same_data=True,
        differs="the paper shows curves",
        read=_maml,
    ),
    "mlp": Published(
        source="TensorFlow's guide, 2019",
        figure=_NONE,
        same_data=False,
        differs="digits; the step size decays here",
        read=_accuracy,
    ),
    "nas": Published(
        source="Zoph et al., 2018",
        figure="test error 2.40 %",
        same_data=False,
        differs="CIFAR-10; the best cells in a larger network, trained in full",
        read=_nas,
    ),
    "siamese": Published(
        source="Keras' example mnist_siamese.py, after Hadsell et al., 2006",
        figure="test accuracy 97.2 %",
        same_data=False,
        differs="MNIST, 20 epochs of a perceptron",
        read=_verified,
    ),
    "transfer": Published(
        source="Kermany et al., 2018",
        figure="test accuracy 96.6 %",
        same_data=False,
        differs=f"four kinds of retinal scans, Inception v3 from ImageNet; here {len(NEW)} kinds of garment, "
        f"{FULL_TRAIN} + {FULL_TEST} images of each, and a network from four epochs on {len(KNOWN)} other kinds",
        read=_accuracy,
    ),
    "vae": Published(
        source="Metzen's tutorial, 2015",
        figure=_NONE,
        same_data=False,
        differs="digits; the tutorial prints the training loss",
        read=_vae,
    ),
}
