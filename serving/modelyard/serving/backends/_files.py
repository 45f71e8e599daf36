"""Files of a model that are read as a whole, where there is memory for them."""

from __future__ import annotations

import sys
from pathlib import Path

from modelyard.errors import ArtifactError, LoadError
from modelyard.serving.machine import free_bytes


class NoRoomError(LoadError):
    """There is no memory for a model now; another that is unloaded may leave some."""


def check_room(path: Path, *, times: int) -> None:
    """Refuses a file, or a folder of files, that is held so many times while it is loaded, where there is no memory.

    In a container the kernel would end the process, and at each of its starts again.

    Raises:
        ArtifactError: It cannot be looked at.
        NoRoomError: There is no memory for it.
    """
    try:
        size = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else (path,)))
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    free = free_bytes()
    if times * size > free:
        held = f", is held {times} times while it is loaded," if times > 1 else ""
        raise NoRoomError(
            f"{path} has {size:,} bytes{held} and {free:,} bytes of memory are left. Serve it where there is more."
        )


def read_model(path: Path, most: int = sys.maxsize) -> bytes:
    """Reads a file of so many bytes at most.

    Raises:
        ArtifactError: It cannot be read.
        LoadError: It is larger, or there is no memory for it: what it holds need not take room on a disk.
    """
    try:
        size = path.stat().st_size
        if size > most:
            raise LoadError(f"{path} has {size:,} bytes; expected up to {most:,}. Export the model again.")
        check_room(path, times=1)
        return path.read_bytes()
    except OSError as exc:
        raise _unreadable(path, exc) from exc


def _unreadable(path: Path, exc: OSError) -> ArtifactError:
    return ArtifactError(f"{path} cannot be read: {exc}")
