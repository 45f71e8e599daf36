"""h2spec's cases of HTTP/2 against the native core's gRPC port: ``make h2spec``, which ``make test`` leaves alone."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT
from tests.support.models import publish_affine
from tests.support.server import serve

_MODULE = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"


@pytest.fixture(scope="module")
def h2spec() -> Path:
    """The program, built once in a checkout."""
    program = ROOT / ".cache" / "h2spec"
    if not program.exists():
        if shutil.which("go") is None:
            pytest.skip("h2spec is not run: there is no go to build it")
        environment = {**os.environ, "GOBIN": str(program.parent)}
        done = subprocess.run(
            ["go", "install", _MODULE], env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"h2spec is not run: go cannot build it: {done.stderr[-200:]}")
    return program


@pytest.mark.skipif(importlib.util.find_spec("modelyard_core") is None, reason="there is no native core")
def test_all_cases_pass(h2spec: Path, tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=["--transport=native"]) as server:
        command = [str(h2spec), "--strict", "--timeout=5", f"--port={server.grpc_port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    summary = done.stdout.splitlines()[-1]
    assert done.returncode == 0, done.stdout[done.stdout.find("Failures:") :]
    assert "0 skipped, 0 failed" in summary
    passed = int(re.findall(r"(\d+) passed", summary)[0])
    assert passed >= 146
