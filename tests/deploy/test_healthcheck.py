"""The image's health check against a real server, in every way it can listen."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.deploy.conftest import DEPLOY
from tests.support.models import publish_affine
from tests.support.namespaces import ALONE, needs_namespaces
from tests.support.server import free_port, serve

SCRIPT = DEPLOY / "image" / "healthcheck.py"


def check(*flags: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *flags],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment},
    )  # fmt: skip
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


@pytest.mark.parametrize("argument", ["serve", "--sagemaker", "--sagemaker=true"])
def test_sagemaker_s_port(tmp_path: Path, argument: str) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    bound = {"SAGEMAKER_BIND_TO_PORT": str(free_port())}
    with serve(
        tmp_path / "affine", model="affine", log_dir=tmp_path, flags=[argument], env=bound, wait=False
    ) as server:
        flags = (f"--port={server.grpc_port}", f"--rest_api_port={server.rest_port}", argument)
        server.wait_until(lambda: check(*flags, **bound)[0] == 0, 30, "healthy")
    code, text = check("--rest_api_port=8501", "serve", SAGEMAKER_BIND_TO_PORT="")
    assert code == 1
    assert "REST port 8080" in text


@pytest.mark.parametrize("overridden", [False, True])
def test_flags_of_a_file(tmp_path: Path, overridden: bool) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    port, inner, outer = free_port(), tmp_path / "inner.flags", tmp_path / "outer.flags"
    inner.write_text(f"# The port.\n\n--rest_api_port={8501 if overridden else port}\n")
    outer.write_text(f"--console=true\n--flagfile={inner}\n")
    # Of a flag that is given twice the last counts, whether a file has it or not.
    given = ["--flagfile", str(outer), f"--rest_api_port={port}"] if overridden else [f"--flagfile={outer}"]
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=given, wait=False) as server:
        flags = (f"--rest_api_port={server.rest_port}", *given)
        server.wait_until(lambda: check(*flags)[0] == 0, 30, "healthy")


def test_a_file_of_flags_that_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "absent"
    assert check(f"--flagfile={file}") == (1, f"--flagfile={file} cannot be read: No such file or directory\n")


@needs_namespaces
@pytest.mark.parametrize("ports", ["--port=0 --rest_api_port={}", "--port={}"])
def test_a_server_below_a_shell(tmp_path: Path, ports: str) -> None:
    """As wrappers of the entry point have it; with processes of its own, as a container has them.

    ``tensorflow_model_server`` with a gRPC port alone has no REST port, as upstream.
    """
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    flags = f"{ports.format(free_port())} --model_base_path={tmp_path / 'affine'}"
    code = (
        f"{sys.executable} -m modelyard.serving {flags} 2>{tmp_path / 'log'} &\n"
        f"until {sys.executable} {SCRIPT}; do kill -0 $! || exit; sleep 0.2; done\n"
        "kill $!; wait"
    )
    done = subprocess.run([*ALONE, "sh", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.endswith("\nready\n"), (done, (tmp_path / "log").read_text())


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("healthcheck", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("command", "port"),
    [
        ("python -m modelyard.serving --port=8500 --rest_api_port=8501 serve", 8080),
        ("python -m modelyard.serving serve --model_base_path=/models/affine", 8080),
        ("python -m modelyard.serving --rest_api_port=8501 --model_name serve", 8501),
        ("python /opt/modelyard/bin/modelyard serve --rest_api_port=9000", 9000),
        ("python /opt/modelyard/bin/modelyard serve --rest_api_port 9000 serve", 8080),
        ("python -m modelyard.serving --console --rest_api_port 9000 --sagemaker", 8080),
        ("python -m modelyard.serving --port=8500 --model_base_path=/models/affine", 0),
    ],
)
def test_ports_of_command_lines(script: ModuleType, monkeypatch: pytest.MonkeyPatch, command: str, port: int) -> None:
    monkeypatch.delenv("SAGEMAKER_BIND_TO_PORT", raising=False)
    assert script.rest_port_of(script.flag_values(script.own_arguments(command.split(" ")))) == port
