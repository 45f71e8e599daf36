"""Fixtures of the training room."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from modelyard.training.data import FashionMnist, load_fashion_mnist

#: Runs code in a process of its own: (code, *arguments, **environment) to the finished process.
RunPython = Callable[..., "subprocess.CompletedProcess[str]"]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def subset() -> FashionMnist:
    patch = pytest.MonkeyPatch()
    with patch.context() as environment:
        environment.setenv("MODELYARD_DATA", "subset")
        return load_fashion_mnist()


@pytest.fixture
def run_python() -> RunPython:
    def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=ROOT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    return run
