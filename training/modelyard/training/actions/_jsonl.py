"""A log that programs read: one JSON object on each line."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from modelyard.errors import TrainingError
from modelyard.training.run import (
    CheckpointSaved,
    Evaluated,
    Event,
    RunEnded,
    RunStarted,
    StepsDone,
    replace_file,
)
from modelyard.wire import json_text


class JsonlLog:
    """Action that appends one line for each event.

    Every line has ``time`` (UTC, ISO 8601), ``kind``, ``task``, ``step`` and ``epoch``. ``start`` adds ``data`` and
    ``notes``, ``steps`` ``values`` and ``examples_per_second``, ``evaluation`` ``result``, ``checkpoint`` ``path``, and
    ``stop`` ``reason``, as the classes of the events describe them. When a killed run goes on, lines of steps that will
    be done again are removed first. A number that is NaN or infinite is null.

    Args:
        path: The file; its folder is made when absent.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)

    def __call__(self, event: Event) -> None:
        """Writes one event.

        Raises:
            TrainingError: The file cannot be read or written, or holds lines that are not of this log.
        """
        try:
            if isinstance(event, RunStarted):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._forget_after(event.step)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json_text(_record(event)) + "\n")
        except OSError as exc:
            raise TrainingError(f"The log {self._path} cannot be written: {exc}") from exc

    def _forget_after(self, step: int) -> None:
        if not self._path.exists():
            return
        try:
            lines = self._path.read_text("utf-8").splitlines(keepends=True)
            if lines and not lines[-1].endswith("\n"):
                # A process that was killed while it wrote.
                lines.pop()
            kept = [line for line in lines if json.loads(line)["step"] <= step]
        except (ValueError, KeyError, TypeError) as exc:
            raise TrainingError(
                f"{self._path} has a line that this log did not write ({exc}); move the file away or name another."
            ) from exc
        replace_file(self._path, "".join(kept), error=TrainingError)


def _record(event: Event) -> dict[str, object]:
    record: dict[str, object] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "kind": event.name,
        "task": event.task,
        "step": event.step,
        "epoch": event.epoch,
    }
    match event:
        case RunStarted():
            record.update({"data": event.data, "notes": list(event.notes)})
        case StepsDone():
            record.update({"values": dict(event.values), "examples_per_second": event.examples_per_second})
        case Evaluated():
            record["result"] = asdict(event.result)
        case CheckpointSaved():
            record["path"] = str(event.path)
        case RunEnded():
            record["reason"] = event.reason
    return record
