"""What was rolled back, over restarts: a JSON file."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from modelyard.artifact import replace_file
from modelyard.errors import ConfigurationError, PublishError

_LOG = logging.getLogger("modelyard.serving")


@dataclass(frozen=True, kw_only=True)
class RolledBack:
    """One target that was rolled back."""

    model: str
    target: str
    version: int | None
    rule: str
    reason: str


def read_rolled_back(path: Path | None) -> tuple[RolledBack, ...]:
    """Reads the file; one that is not there yet says nothing."""
    if path is None:
        return ()
    try:
        return tuple(RolledBack(**item) for item in json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, RecursionError) as exc:
        raise ConfigurationError(
            f"--version_traffic_state_file={path} cannot be read: {exc}. Delete it to begin without any rollback."
        ) from exc


def write_rolled_back(path: Path | None, found: tuple[RolledBack, ...]) -> None:
    """Writes the file anew; where that fails, the log says so, and what is rolled back stays so."""
    if path is None:
        return
    try:
        replace_file(path, (json.dumps([asdict(each) for each in found], indent=2) + "\n").encode())
    except PublishError as exc:
        _LOG.error("--version_traffic_state_file: %s", exc.message)
