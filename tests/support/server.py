"""A real server, started by its command line, spoken to over real sockets."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 90.0
# urllib keeps the proxies of its first call for good, and one test or another pretends to be offline by them.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
#: The contract holds over every transport: MODELYARD_TEST_TRANSPORT=python pytest tests/contract
TRANSPORT = os.environ.get("MODELYARD_TEST_TRANSPORT", "")


def _ports() -> Iterator[int]:
    # Below the range that the kernel takes for outgoing connections: nobody grabs one before the server binds it.
    # Each once, and every worker of pytest its own: two of one server, or of two tests, are never the same.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    mine = range(15_000 + worker, 30_000, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    return itertools.cycle(random.Random().sample(mine, len(mine)))


_PORTS = _ports()


def free_port() -> int:
    for port in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("a cycle has no end")


@dataclass(frozen=True, kw_only=True)
class RunningServer:
    process: subprocess.Popen[bytes]
    model: str
    grpc_port: int
    rest_port: int
    log: Path

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def rest_url(self) -> str:
        return f"http://127.0.0.1:{self.rest_port}"

    def log_text(self) -> str:
        return self.log.read_text()

    def log_objects(self) -> list[dict[str, Any]]:
        """The log's lines in JSON; one that is being written is left out."""
        lines = self.log_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def wait_available(self, version: int | None = None, timeout_s: float = START_TIMEOUT_S) -> None:
        path = f"/v1/models/{self.model}" + ("" if version is None else f"/versions/{version}")
        self.wait_until(lambda: '"AVAILABLE"' in self.get(path)[1], timeout_s, f"{path} AVAILABLE")

    def wait_until(self, condition, timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log_text()}")
            with contextlib.suppress(ConnectionError, urllib.error.URLError):
                if condition():
                    return
            time.sleep(0.02)
        raise TimeoutError(f"not {what} after {timeout_s} s:\n{self.log_text()}")

    def get(self, path: str) -> tuple[int, str]:
        return self.request(urllib.request.Request(self.rest_url + path))

    def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        request = urllib.request.Request(self.rest_url + path, data=body, headers=dict(headers or {}), method="POST")
        return self.request(request)

    def request(self, request: urllib.request.Request) -> tuple[int, str]:
        try:
            with _OPENER.open(request, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read().decode()


@contextlib.contextmanager
def serve(
    base_path: Path | str | None,
    *,
    model: str,
    log_dir: Path,
    flags: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
    program: Sequence[str] = (),
    wait: bool = True,
    admin: bool = True,
    poll_s: float = 0.1,
) -> Iterator[RunningServer]:
    """Starts a server, and stops it; whoever is on this machine may administer it, unless a test is about just that.

    ``program`` is another command than ``python``'s. One that lives as long as the session, with versions that stay,
    has no reason to look for others ten times a second.
    """
    grpc_port, rest_port = free_port(), free_port()
    log = log_dir / f"server-{grpc_port}.log"
    command = [
        *(program or (python, "-m", "modelyard.serving")),
        f"--port={grpc_port}", f"--rest_api_port={rest_port}",
        *([] if base_path is None else [f"--model_name={model}", f"--model_base_path={base_path}"]),
        f"--file_system_poll_wait_seconds={poll_s}",
        *([f"--transport={TRANSPORT}"] if TRANSPORT else []),
        *(["--insecure_admin=loopback"] if admin else []),
        *flags,
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **(env or {})})
    server = RunningServer(process=process, model=model, grpc_port=grpc_port, rest_port=rest_port, log=log)
    try:
        if wait:
            server.wait_available()
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def without(folder: Path, *packages: str) -> dict[str, str]:
    """The environment of a Python in which some packages are not installed; the folder is for a file of it."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(
        f"""
import sys
from importlib.machinery import PathFinder
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {packages!r} else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""
    )
    return {"PYTHONPATH": str(folder)}


def run_to_end(*flags: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """A server that is to end by itself: its exit code, and what it said."""
    result = subprocess.run(
        [sys.executable, "-m", "modelyard.serving", *flags],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **(env or {})},
    )  # fmt: skip
    return result.returncode, result.stdout + result.stderr
