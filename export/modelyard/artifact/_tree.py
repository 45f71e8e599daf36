"""What is below a folder that somebody else may have made: of any depth, number and kind."""

from __future__ import annotations

import os
from pathlib import Path

from modelyard.errors import ArtifactError

#: Far beyond any model's: more of either is damage, or there to hold somebody up.
MAX_ENTRIES, MAX_DEPTH = 10_000, 100


def entries_below(folder: Path) -> dict[str, os.stat_result]:
    """Everything below a folder by its relative path with ``/``: what is there itself, as no link is followed.

    What is removed meanwhile is left out.

    Raises:
        ArtifactError: Something cannot be read, or there are more folders in each other, or entries, than a model has.
    """
    found: dict[str, os.stat_result] = {}
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        if inside.count("/") > MAX_DEPTH:
            raise ArtifactError(f"{folder} has more than {MAX_DEPTH} folders in each other; expected a model's files.")
        try:
            with os.scandir(folder / inside) as entries:
                for entry in entries:
                    name = inside + entry.name
                    found[name] = entry.stat(follow_symlinks=False)
                    if len(found) > MAX_ENTRIES:
                        raise ArtifactError(
                            f"{folder} has more than {MAX_ENTRIES:,} files and folders; expected a model's files."
                        )
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{name}/")
        except FileNotFoundError:
            continue
        except OSError as exc:
            raise ArtifactError(f"{folder / inside} cannot be read: {exc.strerror or exc}") from exc
    return found
