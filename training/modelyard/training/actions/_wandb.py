"""Weights & Biases."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from modelyard.errors import ConfigurationError
from modelyard.lazy import needs_extra
from modelyard.training.run import Evaluated, Event, RunEnded, RunStarted, StepsDone

if TYPE_CHECKING:
    from modelyard.training.actions._predictions import ImagePredictions

WandbMode = Literal["online", "offline", "disabled"]
WANDB_MODES: tuple[WandbMode, ...] = get_args(WandbMode)
_RUN_ID = "wandb-run-id"


class WandbLog:
    """Action that logs a run to Weights & Biases; a run that goes on from a checkpoint goes on in the same W&B run.

    After each device loop the averages since the last evaluation and ``examples_per_second``, as ``train/<name>``;
    after each evaluation its averages, as ``test/<name>``, and a panel of test images with their predictions.

    Args:
        project: Of W&B.
        folder: Where the package keeps its files, and where the id of the W&B run is remembered.
        predictions: Called after each evaluation for the images, such as ``lambda: predict_images(task)``; may return
            None.
        mode: ``online``, ``offline`` (``wandb sync`` sends it later), or ``disabled``.
        config: Further entries of the run's configuration.

    Raises:
        ConfigurationError: An unknown mode.
        MissingDependencyError: The package ``wandb`` is not installed.
    """

    def __init__(
        self,
        project: str,
        folder: Path | str,
        *,
        predictions: Callable[[], ImagePredictions | None] | None = None,
        mode: WandbMode = "online",
        config: dict[str, Any] | None = None,
    ) -> None:
        if mode not in WANDB_MODES:
            raise ConfigurationError(f"mode is {mode!r}; expected one of {', '.join(WANDB_MODES)}.")
        with needs_extra("wandb", "wandb", purpose="WandbLog"):
            import wandb
        self._wandb: Any = wandb
        self._project = project
        self._folder = Path(folder)
        self._predictions = predictions
        self._mode = mode
        self._config = config or {}
        self._run: Any = None

    def __call__(self, event: Event) -> None:
        """Logs one event."""
        if isinstance(event, RunStarted):
            self._start(event)
        elif self._run is None:
            return
        elif isinstance(event, StepsDone):
            values = {f"train/{name}": value for name, value in event.values.items()}
            values["train/examples_per_second"] = event.examples_per_second
            self._run.log(values, step=event.step)
        elif isinstance(event, Evaluated):
            logged: dict[str, Any] = {f"test/{name}": value for name, value in event.result.evaluation.items()}
            found = None if self._predictions is None else self._predictions()
            if found is not None:
                logged["test/predictions"] = self._panel(found)
            self._run.log({**logged, "epoch": event.result.epoch}, step=event.step)
        elif isinstance(event, RunEnded):
            self._run.finish(exit_code=0 if event.reason == "finished" else 1)
            self._run = None

    def _start(self, event: RunStarted) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        remembered = self._folder / _RUN_ID
        if event.step == 0 or not remembered.exists():
            remembered.write_text(uuid.uuid4().hex[:8], "utf-8")
        self._run = self._wandb.init(
            project=self._project,
            id=remembered.read_text("utf-8").strip(),
            # Offline runs cannot ask whether the id exists; their parts meet when they are synced.
            resume="allow" if self._mode == "online" else None,
            dir=str(self._folder),
            mode=self._mode,
            config={
                "task": event.task,
                "max_steps": event.max_steps,
                "steps_per_epoch": event.steps_per_epoch,
                "data": event.data,
                **self._config,
            },
            settings=self._wandb.Settings(silent=True, console="off"),
        )

    def _panel(self, found: ImagePredictions) -> list[object]:
        # Bytes, and a range over all of the images: the package would stretch each of them by itself.
        low, high = float(found.images.min()), float(found.images.max())
        pixels = np.round((found.images - low) * (255.0 / max(high - low, 1e-12))).astype(np.uint8)
        triples = zip(pixels, found.predicted, found.actual, strict=True)
        return [
            self._wandb.Image(image, caption=f"{predicted}" if predicted == actual else f"{predicted} (is {actual})")
            for image, predicted, actual in triples
        ]
