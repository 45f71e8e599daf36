"""Servers that a run starts itself: ``modelyard serve`` as a process, with its metrics page on."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from modelyard.clients import ClientOptions, RetryOptions, connect
from modelyard.errors import LoadTestError, ModelyardError
from modelyard.loadtests.generate._server_metrics import METRICS_PATH
from modelyard.loadtests.options import token

_START_S = 120.0
_STOP_S = 30.0


@dataclass(kw_only=True)
class Served:
    """A process of ``modelyard serve``."""

    #: Name of the first model.
    model: str
    #: Directories of the models, by name.
    models: dict[str, Path]
    grpc_port: int
    rest_port: int
    #: How it was started.
    command: list[str]
    #: Its standard output and standard error.
    log: Path
    cores: frozenset[int] = frozenset()
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def grpc_url(self) -> str:
        """Where gRPC listens."""
        return f"grpc://127.0.0.1:{self.grpc_port}"

    @property
    def rest_url(self) -> str:
        """Where REST listens."""
        return f"http://127.0.0.1:{self.rest_port}"

    def start(self) -> None:
        """Starts the process and waits until its models can be used."""
        self.launch()
        deadline = time.monotonic() + _START_S
        options = ClientOptions(timeout_s=1.0, retry=RetryOptions(attempts=1), token=token())
        while not self.ready(options):
            if self.process.poll() is not None or time.monotonic() > deadline:
                text = self.log.read_text("utf-8", "replace")[-2000:]
                self.stop()
                raise LoadTestError(f"The server did not become ready; it said:\n{text}")
            time.sleep(0.05)

    def launch(self) -> None:
        """Starts the process and does not wait."""
        own = os.sched_getaffinity(0) if self.cores else None
        try:
            if self.cores:
                # Children have the cores of their parent: there is no moment at which it runs elsewhere.
                os.sched_setaffinity(0, self.cores)
            with self.log.open("ab") as output:
                # A session of its own: Linux shares cores between sessions first (sched_autogroup), and the generator
                # is to be no part of what the server gets. Ctrl-C ends the generator, which ends the server.
                self.process = subprocess.Popen(self.command, stdout=output, stderr=output, start_new_session=True)
        except OSError as exc:
            raise LoadTestError(f"Cannot start {self.command[0]}: {exc.strerror}.") from exc
        finally:
            if own:
                os.sched_setaffinity(0, own)

    def ready(self, options: ClientOptions) -> bool:
        """Whether every model can be used."""
        try:
            with connect(self.rest_url, options) as client:
                return all(
                    any(version.state.name == "AVAILABLE" for version in client.status(model).versions)
                    for model in self.models
                )
        except ModelyardError:
            return False

    def stop(self) -> None:
        """Ends the process as an orchestrator would: SIGTERM, and SIGKILL where that does not help."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def served(
    models: dict[str, Path],
    *,
    python: str = sys.executable,
    flags: Sequence[str] = (),
    cores: frozenset[int] = frozenset(),
) -> Iterator[Served]:
    """Run ``modelyard serve`` of an interpreter for some models, by name, on some cores (none: all)."""
    with tempfile.TemporaryDirectory(prefix="modelyard-loadtest-") as name:
        folder = Path(name)
        monitoring, config = folder / "monitoring.config", folder / "models.config"
        monitoring.write_text(f'prometheus_config {{ enable: true path: "{METRICS_PATH}" }}\n', "utf-8")
        entries = (
            f'config {{ name: "{model}" base_path: "{path}" model_platform: "tensorflow" }}'
            for model, path in models.items()
        )
        config.write_text(f"model_config_list {{ {' '.join(entries)} }}\n", "utf-8")
        grpc_port, rest_port = _free_port(), _free_port()
        command = [
            python, "-m", "modelyard.serving", f"--port={grpc_port}", f"--rest_api_port={rest_port}",
            f"--model_config_file={config}", f"--monitoring_config_file={monitoring}",
            "--file_system_poll_wait_seconds=0.2", *flags,
        ]  # fmt: skip
        server = Served(
            model=next(iter(models)),
            models=models,
            grpc_port=grpc_port,
            rest_port=rest_port,
            command=command,
            log=folder / "server.log",
            cores=cores,
        )
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def split_cores(*, enabled: bool) -> Iterator[frozenset[int]]:
    """Keep the generator on a core of its own; yields the server's cores, empty where there is nothing to divide."""
    if not enabled or not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        yield frozenset()
        return
    cores = os.sched_getaffinity(0)
    own = max(cores)
    os.sched_setaffinity(0, {own})
    try:
        yield frozenset(cores - {own})
    finally:
        os.sched_setaffinity(0, cores)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
