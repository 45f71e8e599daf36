"""The image's commands for what was written for TensorFlow Serving's image, each as a real process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.conftest import DEPLOY
from tests.support.models import publish_affine
from tests.support.server import RunningServer, free_port

PROGRAM = DEPLOY / "image" / "tensorflow_model_server"


@contextlib.contextmanager
def running(command: list[str], *, model: str, folder: Path, **environment: str) -> Iterator[RunningServer]:
    """Starts a command with the image's environment, on ports that are free here."""
    grpc_port, rest_port = free_port(), free_port()
    log = folder / "server.log"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    flags = [f"--port={grpc_port}", f"--rest_api_port={rest_port}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *flags], stdout=output, stderr=output, env={**os.environ, "PATH": path, **environment}
        )
    server = RunningServer(process=process, model=model, grpc_port=grpc_port, rest_port=rest_port, log=log)
    try:
        server.wait_available()
        yield server
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name in ("mine", "model"):
        publish_affine(tmp_path / name, slope=1.0, intercept=0.0)
    return tmp_path


def test_the_program_reads_no_variables(models: Path) -> None:
    command = [str(PROGRAM), f"--model_base_path={models}/mine"]
    with running(command, model="default", folder=models, MODEL_BASE_PATH=str(models), MODEL_NAME="mine") as server:
        assert server.get("/v1/models/mine")[0] == 404
