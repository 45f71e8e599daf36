"""How to export a training again, where its export failed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modelyard.errors import ExportError


@contextmanager
def naming_the_command(run: Path, repository: Path) -> Iterator[None]:
    """Adds to an export's error the command that takes the flags which it names: ``run`` and ``tune`` have few of them.

    Args:
        run: The folder of the training.
        repository: Where its model is published.
    """
    try:
        yield
    except ExportError as exc:
        command = shlex.join(["modelyard", "export", str(run), "--repository", str(repository)])
        raise type(exc)(f"{exc.message} The training is kept; flags of the export go to: {command}") from exc
