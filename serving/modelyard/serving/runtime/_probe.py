"""Probes: a version is loaded, and computes, in a process of its own before the server loads it."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO

from modelyard.errors import IntegrityError, LoadError, ManifestError
from modelyard.serving.config import LifecycleOptions, LoadOptions, scratch_file

_LOG = logging.getLogger("modelyard.serving")
_LONGEST_LINE = 300
#: What the process found is said as the server would have said it.
_KINDS = {kind.__name__: kind for kind in (IntegrityError, ManifestError)}


def probe_version(
    name: str,
    version: int,
    path: Path,
    load: LoadOptions,
    options: LifecycleOptions,
    *,
    warmup_iterations: int,
    experiment: bool,
) -> None:
    """Loads a version in another process, which replays its warm-up and computes batches of no row and of one."""
    started = time.perf_counter()
    job = {
        "name": name, "version": version, "path": str(path), "load": asdict(load),
        "memory_bytes": options.probe_memory_bytes, "warmup_iterations": warmup_iterations,
        "experiment": experiment,
    }  # fmt: skip
    command = [sys.executable, "-m", "modelyard.serving.runtime._probed", json.dumps(job)]
    # As in ``modelyard serve``: numpy's threads would take of the server's CPU time, and of the probe's memory.
    environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
    with (
        scratch_file() as said,
        # It ends when its input does, as when this process is killed.
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said
        ) as process,
    ):
        try:
            code = process.wait(options.probe_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise LoadError(
                f"The probe (--probe_loads) was not over after {options.probe_timeout_s:g} s "
                f"(--probe_timeout_seconds){_last_line(said)}. The server has not loaded this version."
            ) from None
        answer = process.stdout.read() if process.stdout is not None else b""
        if code != 0 or not answer:
            raise LoadError(f"{_end(code)}{_last_line(said)}. The server has not loaded this version.")
    found = json.loads(answer)
    if "error" in found:
        raise _KINDS.get(found["error"], LoadError)(f"{found['message'].strip()} (Seen by --probe_loads.)")
    _LOG.info(
        "model %s version %d: its probe took %.2f s and %.0f MB",
        name, version, time.perf_counter() - started, found["peak_bytes"] / 1e6,
    )  # fmt: skip


def _end(code: int) -> str:
    if code >= 0:
        return f"The probe (--probe_loads) ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"The probe (--probe_loads) was ended by {name}" + (", as for want of memory" if name == "SIGKILL" else "")


def _last_line(said: IO[bytes]) -> str:
    said.seek(0)
    lines = [line.strip() for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    return f"; its last line: {lines[-1][:_LONGEST_LINE]}" if lines else ""
