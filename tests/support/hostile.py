"""What somebody hostile puts where a model is expected."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def nested_folders(folder: Path, count: int = 1200) -> Iterator[None]:
    """So many folders in each other below one, which are gone afterwards: pytest's own removal is stopped by them."""
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(folder)
        for _ in range(count):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.fchdir(here)
        os.close(here)
    try:
        yield
    finally:
        # Wherever they are by then.
        subprocess.run(["rm", "-rf", *map(str, folder.parent.glob("*"))], check=True)


def make_large(path: Path) -> None:
    """A file of 4 TB, which take no room on a disk."""
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(4 << 40)
