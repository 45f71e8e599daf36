"""``action``: exports a model from inside its training run, each time it is the best so far."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import Any

from modelyard.artifact import Location, locate, replace_file
from modelyard.errors import ArtifactError, ExportError
from modelyard.export.publish._options import ExportOptions, ExportReport, Progress, ignore_progress
from modelyard.export.publish._task import ExportableTask, export_task
from modelyard.training import EvalResult, Evaluated, Event, Goal, RunStarted, make_source
from modelyard.training.run import goal_of

_LOG = logging.getLogger("modelyard.export")

#: In the model's folder; a name with a dot is no version for any server.
RECORD_NAME = ".best.json"


class BestExport:
    """An action of a training run: exports whenever a metric of the evaluation is the best so far.

    ``test`` and ``commit`` are apart: an export that fails does not spend the record, so the next evaluation that is
    better than what was *published* is exported. The record is a file beside the versions, and a run that is resumed
    goes on with it.

    Args:
        task: The task that the trainer trains.
        destination: ``<repository>/<model>``.
        goal: What better means, or its text, such as ``-test_loss``; None for the most ``test_accuracy``.
        examples: Examples to verify with.
        options: None for the defaults.
        record: The file of the record; None for ``.best.json`` in ``destination``.
        strict: A failed export ends the run; otherwise it is logged, and kept in ``failures``.
        progress: Called as each export goes on.

    Attributes:
        goal: What better means; the trainer makes sure that the evaluation has its number.
        reports: What was published.
        failures: By step, why its export failed.

    Example:
        >>> task = FashionTask()
        >>> best = action(task, "models/fashion", goal=Goal(metric="test_accuracy", mode="max"))
        >>> Trainer(task, TrainerOptions(epochs=10), actions=[best]).run()
        >>> best.reports[-1].version.number
    """

    def __init__(
        self,
        task: ExportableTask,
        destination: Location | str,
        *,
        goal: Goal | str | None = None,
        examples: int = 512,
        options: ExportOptions | None = None,
        record: Location | str | None = None,
        strict: bool = False,
        progress: Progress = ignore_progress,
    ) -> None:
        self._task = task
        self._destination = locate(str(destination))
        self.goal = goal_of("test_accuracy" if goal is None else goal)
        self._examples = examples
        self._options = options
        self._record = locate(str(record)) if record is not None else self._destination / RECORD_NAME
        self._strict = strict
        self._progress = progress
        self._data = ""
        self._identity: Mapping[str, Any] = {}
        self.reports: list[ExportReport] = []
        self.failures: dict[int, str] = {}

    def __call__(self, event: Event) -> None:
        """Looks at one event of a training run.

        Raises:
            ArtifactError: The repository cannot be written, and the action is strict.
            ConfigurationError: The evaluation has no such metric.
            ExportError: The export failed, and the action is strict.
        """
        if isinstance(event, RunStarted):
            self._data, self._identity = event.data, event.identity
        if not isinstance(event, Evaluated):
            return
        value = float(self.goal.value(event.result))
        try:
            if not self.test(value):
                return
            self.reports.append(self._export(event.task, event.result))
            self.commit(value)
        except (ExportError, ArtifactError) as exc:
            if self._strict:
                raise
            self.failures[event.step] = exc.message
            _LOG.error(
                "step %d has the best %s so far (%g), and its export failed: %s",
                event.step, self.goal.metric, value, exc.message,
            )  # fmt: skip

    def test(self, value: float) -> bool:
        """Whether a value of the metric is better than that of the last export; it changes nothing.

        Raises:
            ArtifactError: The record cannot be read.
        """
        if math.isnan(value):
            return False
        best = self._read()
        return best is None or self.goal.is_better(value, best)

    def commit(self, value: float) -> None:
        """Makes a value of the metric the record.

        Raises:
            PublishError: The record cannot be written.
        """
        text = json.dumps({"metric": self.goal.metric, "mode": self.goal.mode, "value": value}) + "\n"
        replace_file(self._record, text.encode())

    def _read(self) -> float | None:
        try:
            document = json.loads(self._record.read_bytes())
            if (document["metric"], document["mode"]) != (self.goal.metric, self.goal.mode):
                # The record of another metric says nothing of this one.
                return None
            return float(document["value"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise ArtifactError(f"The record {self._record} cannot be read: {exc}. Remove it to begin anew.") from exc

    def _export(self, name: str, result: EvalResult) -> ExportReport:
        config = {"epoch": result.epoch, "step": result.step}
        return export_task(
            self._task,
            self._destination,
            source=make_source(name, self._identity, config, data=self._data, metrics=result.metrics),
            examples=self._examples,
            options=self._options,
            progress=self._progress,
        )


#: An action for :class:`modelyard.training.Trainer` that exports each best evaluation.
action = BestExport
