"""What is said of a process that a library has ended."""

from __future__ import annotations

import shutil
import signal

from modelyard.artifact import STAGING_PREFIX, Location, RemotePath


def ended_by(number: int, stage: str) -> str:
    """A sentence on why a process ended in the middle of its work.

    Args:
        number: Its exit code; negative where a signal ended it.
        stage: What it was doing.
    """
    if number >= 0:
        return f"The process ended with exit code {number} in the stage {stage!r}."
    killed = -number == signal.SIGKILL
    what = "The process was killed, most likely for want of memory" if killed else "A library ended the process"
    return f"{what} ({signal.Signals(-number).name}) in the stage {stage!r}."


def remove_staging(model_dir: Location, number: int) -> None:
    """Removes what a process that has ended had begun in a model's folder; its number is part of the name.

    Args:
        model_dir: The directory ``<repository>/<model>``. What goes to an object store begins somewhere else.
        number: Of the process.
    """
    if isinstance(model_dir, RemotePath):
        return
    for folder in model_dir.glob(f"{STAGING_PREFIX}{number}-*"):
        shutil.rmtree(folder)
