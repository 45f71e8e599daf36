"""The image's commands for what was written for TensorFlow Serving's image, each as a real process."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pytest

from tests.deploy.conftest import DEPLOY, ROOT
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve

PROGRAM = DEPLOY / "image" / "tensorflow_model_server"
ENTRY_POINT = DEPLOY / "image" / "tf_serving_entrypoint.sh"


def running(
    program: list[str], *, model: str, folder: Path, **environment: str
) -> contextlib.AbstractContextManager[RunningServer]:
    """Starts a command with the image's environment, on ports that are free here."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return serve(None, model=model, log_dir=folder, program=program, env={"PATH": path, **environment})


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name in ("mine", "model"):
        publish_affine(tmp_path / name, slope=1.0, intercept=0.0)
    return tmp_path


def test_the_program_reads_no_variables(models: Path) -> None:
    command = [str(PROGRAM), f"--model_base_path={models}/mine"]
    with running(command, model="default", folder=models, MODEL_BASE_PATH=str(models), MODEL_NAME="mine") as server:
        assert server.get("/v1/models/mine")[0] == 404


@pytest.mark.parametrize("again", [[], ["tensorflow_model_server"], ["/usr/bin/tf_serving_entrypoint.sh"]])
def test_the_entry_point_by_its_name_and_the_program_named_behind_it(models: Path, again: list[str]) -> None:
    """As ``command: tensorflow_model_server --rest_api_port=8501 ...`` in a compose file has it."""
    command = [str(ENTRY_POINT), *again]
    with running(command, model="mine", folder=models, MODEL_BASE_PATH=str(models), MODEL_NAME="mine") as server:
        assert server.get("/v1/models/mine")[0] == 200


def test_the_image_has_both_and_starts_by_the_second() -> None:
    """Images that are built on TensorFlow Serving's replace its entry point, and say no other."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    server = lines[lines.index("FROM runtime AS server") :]
    starts = [each for each in server if each.startswith("ENTRYPOINT")]
    assert starts == [f'ENTRYPOINT ["/usr/bin/{ENTRY_POINT.name}"]']
    (line,) = [each for each in server if each.endswith(" /usr/bin/")]
    assert line.split()[1:-1] == [f"deploy/image/{each.name}" for each in (PROGRAM, ENTRY_POINT)]
    assert all(os.access(each, os.X_OK) for each in (PROGRAM, ENTRY_POINT))
