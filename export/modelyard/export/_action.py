"""``action``: exports a model from inside its training run, each time it is the best so far."""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
from typing import Any, Literal

from modelyard.artifact import Location, RemotePath, locate
from modelyard.errors import ArtifactError, ConfigurationError, ExportError, PublishError
from modelyard.export._options import ExportOptions, ExportReport, Progress, ignore_progress
from modelyard.export._task import ExportableTask, export_task

_LOG = logging.getLogger("modelyard.export")

#: In the model's folder; a name with a dot is no version for any server.
RECORD_NAME = ".best.json"


class BestExport:
    """An action of a training run: exports whenever a metric of the evaluation is the best so far.

    ``test`` and ``commit`` are apart: an export that fails does not spend the
    record, so the next epoch that is better than what was *published* is
    exported. The record is a file beside the versions, and a run that is
    resumed goes on with it.

    Args:
        task: The task that the trainer trains.
        destination: ``<repository>/<model>``.
        metric: Name of a metric of ``eval_step``.
        mode: Whether more of it is better, or less.
        examples: Examples to verify with.
        options: None for the defaults.
        record: The file of the record; None for ``.best.json`` in ``destination``.
        strict: A failed export ends the run; otherwise it is logged, and kept in ``failures``.
        progress: Called as each export goes on.

    Attributes:
        reports: What was published.
        failures: By epoch, why its export failed.
    """

    def __init__(
        self,
        task: ExportableTask,
        destination: Location | str,
        *,
        metric: str = "accuracy",
        mode: Literal["max", "min"] = "max",
        examples: int = 512,
        options: ExportOptions | None = None,
        record: Location | str | None = None,
        strict: bool = False,
        progress: Progress = ignore_progress,
    ) -> None:
        if mode not in ("max", "min"):
            raise ConfigurationError(f"mode is {mode!r}; expected 'max' or 'min'.")
        self._task = task
        self._destination = locate(str(destination))
        self._metric = metric
        self._mode = mode
        self._examples = examples
        self._options = options
        self._record = locate(str(record)) if record is not None else self._destination / RECORD_NAME
        self._strict = strict
        self._progress = progress
        self._data = ""
        self.reports: list[ExportReport] = []
        self.failures: dict[int, str] = {}

    def __call__(self, event: Any) -> None:
        """Looks at one event of a training run.

        Args:
            event: A :class:`modelyard.training.Event`.

        Raises:
            ArtifactError: The repository cannot be written, and the action is strict.
            ConfigurationError: The evaluation has no such metric.
            ExportError: The export failed, and the action is strict.
        """
        if event.kind == "start":
            self._data = event.message
        if event.kind != "epoch":
            return
        evaluation = event.result.evaluation
        if self._metric not in evaluation:
            known = ", ".join(sorted(evaluation)) or "none"
            raise ConfigurationError(f"The evaluation has no metric {self._metric!r} to export by; it has {known}.")
        value = float(evaluation[self._metric])
        try:
            if not self.test(value):
                return
            self.reports.append(self._export(event))
            self.commit(value)
        except (ExportError, ArtifactError) as exc:
            if self._strict:
                raise
            self.failures[event.epoch] = exc.message
            _LOG.error(
                "epoch %d has the best %s so far (%g), and its export failed: %s",
                event.epoch, self._metric, value, exc.message,
            )  # fmt: skip

    def test(self, value: float) -> bool:
        """Whether a value is better than that of the last export; it changes nothing.

        Args:
            value: Of the metric.

        Raises:
            ArtifactError: The record cannot be read.
        """
        if math.isnan(value):
            return False
        best = self._read()
        if best is None:
            return True
        return value > best if self._mode == "max" else value < best

    def commit(self, value: float) -> None:
        """Makes a value the record.

        Args:
            value: Of the metric.

        Raises:
            PublishError: The record cannot be written.
        """
        text = json.dumps({"metric": self._metric, "mode": self._mode, "value": value}) + "\n"
        if isinstance(self._record, RemotePath):
            self._record.write_bytes(text.encode())
            return
        try:
            with tempfile.NamedTemporaryFile("w", dir=self._record.parent, prefix=".best-", delete=False) as file:
                file.write(text)
            os.replace(file.name, self._record)
        except OSError as exc:
            raise PublishError(f"Cannot write the record {self._record}: {exc}") from exc

    def _read(self) -> float | None:
        try:
            document = json.loads(self._record.read_bytes())
            if (document["metric"], document["mode"]) != (self._metric, self._mode):
                # The record of another metric says nothing of this one.
                return None
            return float(document["value"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise ArtifactError(f"The record {self._record} cannot be read: {exc}. Remove it to begin anew.") from exc

    def _export(self, event: Any) -> ExportReport:
        from modelyard.training import TrainResult

        run = TrainResult(
            task=event.task,
            step=event.step,
            epochs=(event.result,),
            resumed_from=None,
            checkpoint=None,
            data=self._data,
            config={"epoch": event.epoch, "step": event.step},
        )
        return export_task(
            self._task,
            self._destination,
            run=run,
            examples=self._examples,
            options=self._options,
            progress=self._progress,
        )


def action(task: ExportableTask, destination: Location | str, **options: Any) -> BestExport:
    """An action for :class:`modelyard.training.Trainer` that exports each best epoch.

    Args:
        task: The task that the trainer trains.
        destination: ``<repository>/<model>``.
        options: See :class:`BestExport`.

    Example:
        >>> task = FashionTask()
        >>> best = action(task, "models/fashion", metric="accuracy")
        >>> Trainer(task, TrainerOptions(epochs=10), actions=[best]).run()
        >>> best.reports[-1].version.number
    """
    return BestExport(task, destination, **options)
