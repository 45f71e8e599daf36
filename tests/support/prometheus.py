"""A real Prometheus, where the machine has one (Debian's package prometheus)."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import free_port
from tests.support.waiting import until


def tool(name: str) -> str:
    """The path of ``prometheus`` or ``promtool``; skips the test where there is none."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"there is no {name} (apt-get install prometheus)")
    return path


@dataclass(frozen=True)
class Prometheus:
    """One that runs."""

    url: str

    def ask(self, path: str, **parameters: str | float) -> Any:
        """The data of an API call; None while it cannot answer."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as exc:
            if exc.code == 503:
                return None
            raise AssertionError(f"{path} {parameters}: {exc.read().decode()}") from exc
        except OSError:
            return None

    def values(self, expression: str) -> list[Any]:
        """What an expression is now: a number, or a native histogram, for each series."""
        found = self.ask("query", query=expression)
        return [] if found is None else [row["value"][1] if "value" in row else row for row in found["result"]]

    def wait_for(self, expression: str, timeout_s: float = 30) -> None:
        """Waits until an expression has a result."""
        until(
            lambda: self.values(expression), timeout_s, lambda: f"nothing for {expression}: {self.ask('targets')}",
            poll_s=0.1,
        )  # fmt: skip


@contextmanager
def prometheus(config: Path, folder: Path, *, features: Sequence[str] = ()) -> Iterator[Prometheus]:
    """Runs one by a configuration file, with its data in a folder."""
    port = free_port()
    command = [
        tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", *(f"--enable-feature={feature}" for feature in features),
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(timeout=30)
