"""What a server tells of its traffic rules."""

from __future__ import annotations

import json
from typing import Any

from tests.support.server import RunningServer


def rows(server: RunningServer) -> list[dict[str, Any]]:
    """A row for each target of each model's rule."""
    found: list[dict[str, Any]] = json.loads(server.get("/v2/traffic")[1])["targets"]
    return found


def row(server: RunningServer, model: str, target: str) -> dict[str, Any]:
    """That of one target."""
    (found,) = [each for each in rows(server) if (each["model"], each["target"]) == (model, target)]
    return found
