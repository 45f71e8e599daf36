"""A server process of our own for as long as a block lasts."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modelyard.clients import connect
from modelyard.errors import ServerError, UnavailableError

_STOP_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Address:
    """The URLs of a server, for :func:`modelyard.clients.connect`."""

    grpc: str
    rest: str


@contextlib.contextmanager
def served(base_path: Path, *, model: str, flags: Sequence[str] = (), timeout_s: float = 120.0) -> Iterator[Address]:
    """Serves a model in a process of its own, on free ports of the loopback interface, for as long as the block lasts.

    Raises:
        ServerError: The server ended by itself; the message has the end of its log.
        UnavailableError: It did not become ready in ``timeout_s`` seconds.
    """
    grpc_port, rest_port = _free_port(), _free_port()
    address = Address(grpc=f"grpc://127.0.0.1:{grpc_port}", rest=f"http://127.0.0.1:{rest_port}")
    command = [
        sys.executable, "-m", "modelyard.serving",
        f"--port={grpc_port}", f"--rest_api_port={rest_port}",
        f"--model_name={model}", f"--model_base_path={base_path.resolve()}",
        *flags,
    ]  # fmt: skip
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            with connect(address.grpc) as client:
                try:
                    client.wait_ready(model, timeout_s=timeout_s)
                except UnavailableError as exc:
                    log.seek(0)
                    tail = log.read()[-2000:].decode(errors="replace")
                    if process.poll() is not None:
                        raise ServerError(f"The server ended with exit code {process.returncode}:\n{tail}") from exc
                    raise UnavailableError(f"{exc.message}\nThe end of the server's log:\n{tail}") from exc
            yield address
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    # Below the ports of outgoing connections: no other process takes it before the server binds it.
    while True:
        port = random.randrange(15_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
