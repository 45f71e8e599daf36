"""--probe_loads: what would end the server ends another process, and the version before goes on serving."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from modelyard.errors import ConfigurationError
from modelyard.serving.config import parse_flags
from tests.support.admin import ask, available
from tests.support.models import publish_affine, publish_crashing, publish_hungry, publish_slow
from tests.support.server import RunningServer, serve

MEMORY_MB = 1024
FLAGS = ["--probe_loads", f"--probe_memory_mb={MEMORY_MB}"]
REFUSED = "The server has not loaded this version."


def refusal(server: RunningServer, version: int) -> str:
    """Why a version is not served, once that is known."""

    def status() -> dict[str, object]:
        found = json.loads(server.get(f"/v1/models/m/versions/{version}")[1]).get("model_version_status", [{}])
        return found[0] if found and found[0].get("state") == "END" else {}

    server.wait_until(lambda: bool(status()), 60, f"refusing version {version}")
    message: str = status()["status"]["error_message"]  # type: ignore[index]
    return message


def test_the_crash_is_real(tmp_path: Path) -> None:
    publish_crashing(tmp_path / "m")
    with serve(tmp_path / "m", model="m", log_dir=tmp_path, wait=False) as server:
        assert server.process.wait(timeout=60) == -signal.SIGABRT


def test_what_would_end_the_server_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    publish_affine(folder, slope=2.0, intercept=0.0)
    with serve(folder, model="m", log_dir=tmp_path, flags=FLAGS) as server:
        assert "model m version 1: its probe took" in server.log_text()
        assert ask(server, "m") == 2.0
        publish_crashing(folder)
        why = refusal(server, 2)
        assert "was ended by SIGABRT; its last line: terminate called without an active exception" in why
        assert REFUSED in why and "version 2 cannot be served" in server.log_text()
        publish_hungry(folder, megabytes=3 * MEMORY_MB)
        assert "'serving_default' has not enough memory for one row" in refusal(server, 3)
        # What fits is served: the limit is that of the process, and not of the model alone.
        publish_hungry(folder, megabytes=MEMORY_MB // 4)
        server.wait_available(4)
        assert ask(server, "m") == 1.0
        # A version that was loaded before is not tried again.
        folder.rename(tmp_path / "away")
        folder.mkdir()
        server.wait_until(lambda: not available(server, "m"), 30, "taking everything away")
        probes = server.log_text().count("its probe took")
        (tmp_path / "away" / "4").rename(folder / "4")
        server.wait_until(lambda: ask(server, "m") == 1.0, 30, "back")
        assert server.log_text().count("its probe took") == probes


def test_no_probe_outlives_its_server(tmp_path: Path) -> None:
    publish_slow(tmp_path / "m", loops=10_000_000, tried=True)
    flags = ["--probe_loads"]
    with serve(tmp_path / "m", model="m", log_dir=tmp_path, flags=flags, wait=False) as server:
        process = psutil.Process(server.process.pid)
        server.wait_until(lambda: len(process.children()) == 1, 30, "probing")
        (child,) = process.children()
        server.process.kill()
        server.process.wait()
        child.wait(timeout=10)


def test_a_probe_has_no_threads_of_numpy(tmp_path: Path) -> None:
    """Each has a stack, which counts against --probe_memory_mb, and spins at its start: on 64 CPUs that is 3 GB."""
    publish_slow(tmp_path / "m", loops=10_000_000, tried=True)
    flags = ["--probe_loads"]
    with serve(tmp_path / "m", model="m", log_dir=tmp_path, flags=flags, wait=False) as server:
        process = psutil.Process(server.process.pid)

        def limited() -> bool:
            return any(child.environ().get("OPENBLAS_NUM_THREADS") == "1" for child in process.children())

        server.wait_until(limited, 30, "probing with one thread")


def test_a_probe_that_fails_unexpectedly_says_why() -> None:
    # As its server does, its input stays open.
    command = [sys.executable, "-m", "modelyard.serving.runtime._probed", "{}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as probe:
        assert probe.wait(timeout=60) == 1
        assert probe.stderr is not None
        assert probe.stderr.read().splitlines()[-1] == "KeyError: 'memory_bytes'"


def test_damaged_and_slow_versions_are_refused(tmp_path: Path) -> None:
    published = publish_affine(tmp_path / "m", slope=2.0, intercept=0.0)
    file = published.path / "onnx" / "serving_default.onnx"
    file.write_bytes(file.read_bytes()[:-4] + b"oops")
    flags = ["--probe_loads", "--probe_timeout_seconds=2"]
    with serve(tmp_path / "m", model="m", log_dir=tmp_path, flags=flags, wait=False) as server:
        assert "sha256" in refusal(server, 1)
        assert '"DATA_LOSS"' in server.get("/v1/models/m")[1]
        # Nor is one whose probe takes too long.
        publish_slow(tmp_path / "m", loops=10_000_000, tried=True)
        why = refusal(server, 2)
        assert "was not over after 2 s (--probe_timeout_seconds)" in why and REFUSED in why


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--probe_loads", "--probe_timeout_seconds=0"], "--probe_timeout_seconds=0 would refuse every version"),
        (["--max_batch_seconds=-1"], "--max_batch_seconds=-1; expected 0 or more"),
        (["--shutdown_delay_seconds=-0.5"], "--shutdown_delay_seconds=-0.5; expected 0 or more"),
    ],
)
def test_flags_that_make_no_sense(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_flags(["--model_base_path=/x", *flags])


def test_limits_that_this_system_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigurationError, match="--probe_memory_mb=100 is for Linux only"):
        parse_flags(["--model_base_path=/x", "--probe_memory_mb=100"])
