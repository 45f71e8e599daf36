"""What ``transfer`` gains: new classes from few images, by a network that knows other classes, and from nothing."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from benchmarks.results.garments import rendered_folder
from modelyard.training import ProgressBar, Trainer, TrainerOptions
from modelyard.training.data import FashionMnist
from modelyard.training.tasks import TransferTask

#: Two halves with tops, shoes and others in each: T-shirt, trouser, coat, sandal and boot are known.
KNOWN, NEW = (0, 1, 4, 5, 9), (2, 3, 6, 7, 8)
#: Training images of each new class, other ones in each draw.
FEW = (5, 10, 30)
DRAWS = 3
STEPS = 300
#: Images of each class of the full recipe.
FULL_TRAIN, FULL_TEST = 600, 200


def measure_gain(data: FashionMnist) -> dict[int, tuple[float, float]]:
    """Test accuracy on the new classes, by the number of training images of each: the mean over the draws.

    The first is of the network that knows the others, frozen below a new head; the second of one from nothing.

    Args:
        data: The full data set.
    """
    found: dict[int, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as known:
        base = small_transfer(rendered_folder(data, labels=KNOWN, train=6000))
        Trainer(base, TrainerOptions(epochs=4, batch_size=32, seed=0, model_dir=Path(known))).run()
        for count in FEW:
            frozen, nothing = [], []
            for draw in range(DRAWS):
                few = rendered_folder(data, labels=NEW, first=draw * count, train=count, test=1000)
                frozen.append(_accuracy(small_transfer(few, weights=known, trained_layers=0), seed=draw))
                nothing.append(_accuracy(small_transfer(few), seed=draw))
            found[count] = statistics.fmean(frozen), statistics.fmean(nothing)
    return found


def full_transfer(data: FashionMnist, base: Path) -> TransferTask:
    """The task at its default size on the new classes, on top of a network that was trained on those known.

    Args:
        data: The full data set.
        base: The folder of the run on the known classes; it is made, where it is not there.
    """

    def images(labels: tuple[int, ...]) -> str:
        return rendered_folder(data, labels=labels, train=FULL_TRAIN, test=FULL_TEST)

    task = TransferTask(folder=images(KNOWN), weights="none", trained_layers=200, learning_rate=1e-3)
    Trainer(task, TrainerOptions(epochs=4, batch_size=32, seed=0, model_dir=base), [ProgressBar()]).run()
    return TransferTask(folder=images(NEW), weights=str(base))


def small_transfer(folder: str, *, weights: str = "none", trained_layers: int = 200) -> TransferTask:
    """MobileNetV2 at 32 x 32, all of it trained unless something else is said."""
    return TransferTask(
        folder=folder, weights=weights, trained_layers=trained_layers, size=32, learning_rate=1e-3, augment=False
    )


def _accuracy(task: TransferTask, seed: int) -> float:
    options = TrainerOptions(max_steps=STEPS, batch_size=16, seed=seed, eval_every_steps=STEPS)
    return Trainer(task, options).run().metrics["test_accuracy"]
