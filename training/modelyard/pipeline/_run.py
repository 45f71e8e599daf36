"""Train, export, verify, publish, serve, predict: the whole way with one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import DEFAULT_SIGNATURE
from modelyard.pipeline._again import naming_the_command
from modelyard.pipeline._check import IMAGE, IMAGE_BYTES, check_classifier, check_export
from modelyard.pipeline._compare import Comparison, compare
from modelyard.pipeline._picture import draw_predictions

if TYPE_CHECKING:
    from modelyard.export import ExportReport
    from modelyard.training import Task, TrainResult

#: Examples on which formats are verified and on which servers are compared with the trained model.
_EXAMPLES = 512
_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What the pipeline does, on the task ``package.module:Class`` or one that modelyard knows by name.

    ``run_dir`` has checkpoints and logs (default: ``demo/run/NAME`` by the task's name); ``calls`` are timed for each
    format and protocol; the export's own measurements take about ``measure_seconds``; fewer examples to verify with
    than ``min_examples`` are an error.
    """

    task: str
    assignments: tuple[str, ...] = ()
    epochs: int = 3
    seed: int = 0
    repository: Path = Path("demo/repository")
    run_dir: Path | None = None
    calls: int = 200
    measure_seconds: float = 20.0
    min_examples: int = 256


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """The outcome of a pipeline: for each shown image its true label and the trained model's."""

    training: TrainResult
    export: ExportReport
    rows: tuple[Comparison, ...]
    true_labels: tuple[str, ...]
    predicted_labels: tuple[str, ...]
    picture: Path


def run_pipeline(options: RunOptions) -> RunReport:
    """Trains, exports, publishes, serves and predicts; each stage checks its own result before the next begins.

    Raises:
        ConfigurationError: Unknown task, or one without an image classifier's signatures; before it is trained.
        ExportError: Too few examples, before the training; or a format does not compute what the trained model does.
        ServerError: A server did not start or did not answer.
        TrainingError: Training failed.
    """
    from modelyard.export import ExportEvent, ExportOptions, ProgressBar
    from modelyard.training import JsonlLog, TensorBoardLog, Trainer, TrainerOptions
    from modelyard.training.tasks import make_task

    task = make_task(options.task, options.assignments)
    export_options = ExportOptions(min_examples=options.min_examples, measure_seconds=options.measure_seconds)
    # Before the training: what it would have been for nothing.
    traced, data = check_export(task, options=export_options, count=max(_EXAMPLES, options.min_examples))
    check_classifier(options.task, dict(traced.signatures), data)
    run_dir = options.run_dir or Path("demo/run", task.name)
    log_actions = (JsonlLog(run_dir / "log.jsonl"), TensorBoardLog(run_dir / "tensorboard"))
    recipe = {**task.recipe, "epochs": options.epochs}
    trainer_options = TrainerOptions(**recipe, seed=options.seed, model_dir=run_dir)
    training = Trainer(task, trainer_options, (ProgressBar(), *log_actions)).run()
    # Those that are shown come first: spread over all, which may be in the order of their classes.
    count = len(np.asarray(data.labels))
    shown = np.linspace(0, count - 1, min(count, _SHOWN)).round().astype(np.int64)
    order = np.concatenate([shown, np.setdiff1d(np.arange(count), shown)])
    examples = np.asarray(data.inputs[DEFAULT_SIGNATURE][IMAGE])[order]
    model_dir = options.repository / task.name
    with ProgressBar() as bar:
        with naming_the_command(run_dir, options.repository):
            report = training.export(model_dir, data=data, options=export_options, progress=bar)
        expected = _classes(task, examples)
        rows = compare(
            model_dir,
            model=task.name,
            formats=tuple(report.manifest.formats),
            examples=examples,
            expected=expected,
            encoded=data.inputs[IMAGE_BYTES][IMAGE_BYTES][shown].tolist(),
            calls=options.calls,
            progress=lambda done, total: bar(ExportEvent(stage="serve and predict", done=done, total=total)),
        )
    true = tuple(data.class_names[index] for index in np.asarray(data.labels)[shown])
    predicted = tuple(data.class_names[index] for index in expected[: len(shown)])
    picture = run_dir / "predictions.png"
    draw_predictions(picture, _pixels(examples[: len(shown)]), _agreed(rows, predicted), true)
    return RunReport(
        training=training,
        export=report,
        rows=rows,
        true_labels=true,
        predicted_labels=predicted,
        picture=picture,
    )


def _classes(task: Task, examples: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """The trained model's own classes, from the live model."""
    function: Any = task.signatures()[DEFAULT_SIGNATURE]
    return np.asarray(function.function(image=examples)["class_id"], dtype=np.int64)


def _agreed(rows: Sequence[Comparison], predicted: Sequence[str]) -> list[str]:
    """The label of each image where all servers agree; else all of them."""
    return [" / ".join(sorted({row.labels[index] for row in rows})) for index in range(len(predicted))]


def _pixels(examples: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Pixels to look at, whatever scale the network takes them in."""
    low, high = float(examples.min(initial=0.0)), float(examples.max(initial=0.0))
    if low < 0 or high > 255:
        examples = (examples - low) / (high - low)
        high = 1.0
    return np.rint(examples * (255 if high <= 1 else 1)).astype(np.uint8)
