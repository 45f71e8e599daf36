"""Servers on core 0, and the load on them (h2load, of Debian's nghttp2-client) from core 1."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.pages import processor, processor_facts


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is sent to one server."""

    url: str
    body: Path
    headers: Mapping[str, str] = field(default_factory=dict)
    http1: bool = True


def write(path: Path, data: bytes) -> Path:
    """Writes a body for h2load."""
    path.write_bytes(data)
    return path


def load(request: Request, count: int, seconds: float, *, cores: str = "1", threads: int = 1) -> float:
    """Requests a second; any that fails is an error."""
    connections, streams = (count, 1) if request.http1 or count <= 8 else (8, count // 8)
    command = [
        "taskset", "-c", cores, "h2load", "-t", str(min(threads, connections)), "-c", str(connections), "-m",
        str(streams), "-d", str(request.body), "--warm-up-time=300ms", "-D", f"{round(1e3 * seconds)}ms",
        *(["--h1"] if request.http1 else []),
    ]  # fmt: skip
    for name, value in request.headers.items():
        command += ["-H", f"{name}: {value}"]
    text = subprocess.run([*command, request.url], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored", text)
    if found is None or int(found[3]) or int(found[4]) or not int(found[2]):
        raise RuntimeError(f"load on {request.url} failed:\n{text[-800:]}")
    return int(found[2]) / seconds


@contextlib.contextmanager
def pinned(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cores: str = "0") -> Iterator[None]:
    """A server on core 0, or on those named."""
    with log.open("wb") as output:
        process = subprocess.Popen(["taskset", "-c", cores, *command], stdout=output, stderr=output, env=env)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def compiled(folder: Path) -> dict[str, str]:
    """Variables with which Python keeps its bytecode, as it does of installed packages.

    An editable installation, or an environment that forbids it, compiles all
    sources at each start.

    Args:
        folder: Where the bytecode is kept.
    """
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def machine() -> str:
    """What ratios depend on besides the servers: the processor and Python, in words."""
    facts = processor_facts()
    name = " ".join([processor(), *(f"{key} {facts[key]}" for key in ("cpu family", "model") if key in facts)])
    return f"{name}, Python {platform.python_version()}, {os.cpu_count()} cores"


def wait_for(url: str) -> None:
    """Waits until a server says 200."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as response:
            if response.status == 200:
                return
        time.sleep(0.1)
    raise TimeoutError(f"no 200 from {url}")
