"""The image's health check against a real server, in every way it can listen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.conftest import DEPLOY
from tests.support.models import publish_affine
from tests.support.server import free_port, serve

SCRIPT = DEPLOY / "image" / "healthcheck.py"


def check(*flags: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize("form", ["--{}={}", "--{} {}"])
def test_rest(tmp_path: Path, form: str) -> None:
    (tmp_path / "affine").mkdir()
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, wait=False) as server:
        # Of a flag that is given twice the last counts, for the server and for its check.
        flags = ["--rest_api_port=8501", *form.format("rest_api_port", server.rest_port).split(" ")]
        server.wait_until(lambda: check(*flags)[1].startswith("not ready"), 60, "listening")
        assert check(*flags)[0] == 1
        publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
        server.wait_available()
        assert check(*flags) == (0, "ready\n")


def test_grpc_alone(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path) as server:
        flags = ("--rest_api_port=0", f"--port={server.grpc_port}")
        server.wait_until(lambda: check(*flags)[0] == 0, 30, "healthy")
        assert check(*flags) == (0, "ready\n")


def test_nobody_there() -> None:
    port = free_port()
    code, text = check(f"--rest_api_port={port}")
    assert code == 1
    assert text.startswith(f"no answer from REST port {port}")
    code, text = check("--rest_api_port=0", f"--port={port}")
    assert code == 1
    assert text.startswith(f"no answer from gRPC port {port}")


def test_tls_without_rest_cannot_be_asked() -> None:
    code, text = check("--rest_api_port=0", "--port=8500", "--ssl_config_file=/tls.config")
    assert code == 1
    assert "--no-healthcheck" in text
