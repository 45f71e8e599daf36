"""Train, export, verify, publish, serve, predict: the whole way with one call."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import DEFAULT_SIGNATURE, Source
from modelyard.errors import ConfigurationError
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
    """What the pipeline does.

    Attributes:
        task: Name of the training task.
        epochs: Passes over the training data.
        seed: Seed of the training run.
        repository: The model repository to publish to.
        run_dir: Folder of checkpoints and logs.
        calls: Timed calls for each format and protocol.
    """

    task: str
    epochs: int = 3
    seed: int = 0
    repository: Path = Path("demo/repository")
    run_dir: Path = Path("demo/run")
    calls: int = 200


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What came of it.

    Attributes:
        training: The training run.
        export: What was published.
        rows: One comparison for each format and protocol.
        true_labels: True label of each shown image.
        predicted_labels: The trained model's label of each shown image.
        picture: A PNG with these images and labels.
    """

    training: TrainResult
    export: ExportReport
    rows: tuple[Comparison, ...]
    true_labels: tuple[str, ...]
    predicted_labels: tuple[str, ...]
    picture: Path


def run_pipeline(options: RunOptions) -> RunReport:
    """Runs the pipeline; each stage checks its own result before the next begins.

    Args:
        options: What to do.

    Returns:
        What came of it.

    Raises:
        ConfigurationError: Unknown task, or one without an image classifier's signatures.
        ExportError: A format does not compute what the trained model computes.
        ServerError: A server did not start or did not answer.
        TrainingError: Training failed.
    """
    from modelyard.export import ExportEvent, ProgressBar, export_model, git_commit
    from modelyard.training import JsonlLog, TensorBoardLog, Trainer, TrainerOptions
    from modelyard.training import ProgressBar as TrainingBar
    from modelyard.training.tasks import find_task

    task = find_task(options.task)()
    log_actions = (JsonlLog(options.run_dir / "log.jsonl"), TensorBoardLog(options.run_dir / "tensorboard"))
    trainer_options = TrainerOptions(epochs=options.epochs, seed=options.seed, model_dir=options.run_dir)
    training = Trainer(task, trainer_options, (TrainingBar(), *log_actions)).run()
    data = task.verification_data(_EXAMPLES)
    inputs = data.inputs.get(DEFAULT_SIGNATURE, {})
    if data.labels is None or "image" not in inputs:
        raise ConfigurationError(f"Task {options.task!r} is no image classifier; modelyard run shows only those.")
    examples = np.asarray(inputs["image"], dtype=np.float32)
    model_dir = options.repository / options.task
    with ProgressBar() as bar:
        report = export_model(
            task.root,
            task.signatures(),
            data,
            model_dir=model_dir,
            source=Source(
                task=options.task,
                git_commit=git_commit(Path(inspect.getfile(type(task)))),
                data=training.data,
                config=dict(training.config),
                metrics=training.metrics,
            ),
            progress=bar,
        )
        images = _grey(examples[:_SHOWN])
        expected = _classes(task, examples)
        rows = compare(
            model_dir,
            model=options.task,
            formats=tuple(report.manifest.formats),
            examples=examples,
            expected=expected,
            encoded=[_png(image) for image in images],
            calls=options.calls,
            progress=lambda done, total: bar(ExportEvent(stage="serve and predict", done=done, total=total)),
        )
    true = tuple(data.class_names[index] for index in data.labels[:_SHOWN])
    predicted = tuple(data.class_names[index] for index in expected[:_SHOWN])
    picture = options.run_dir / "predictions.png"
    draw_predictions(picture, images, _agreed(rows, predicted), true)
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
    result = []
    for index in range(len(predicted)):
        labels = {labels[index] for row in rows for labels in (row.labels, row.encoded_labels)}
        result.append(" / ".join(sorted(labels)))
    return result


def _grey(examples: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return np.rint(examples[..., 0] * 255).astype(np.uint8)


def _png(image: npt.NDArray[np.uint8]) -> bytes:
    from PIL import Image

    buffer = BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()
