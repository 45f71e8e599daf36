"""Files that are complete at any time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """A hidden file to write beside a path, which takes its place in one move at the end of the block.

    No reader sees half of it; where writing fails, as on a full disk, the draft is removed and the old file stays.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        yield draft
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
