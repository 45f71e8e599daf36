"""docs/clients.md: its blocks run in order, and a project elsewhere passes strict type checkers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from modelyard.training.data import load_fashion_mnist
from tests.support.classifier import publish_classifier
from tests.support.pages import blocks
from tests.support.saved_models import save_tf1_half_plus_two
from tests.support.server import serve

PROJECT = '''\
"""What a user writes, with every kind of result named."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.clients import (
    AsyncClient,
    Classification,
    Client,
    ClientOptions,
    InferenceTask,
    ManyOptions,
    Model,
    ModelConfig,
    Prediction,
    Regression,
    RetryOptions,
    TlsOptions,
    connect,
    connect_async,
)
from modelyard.errors import ModelyardError


def classes(client: Client, images: npt.NDArray[np.float32]) -> list[int]:
    model: Model = client.model("fashion", label="stable")
    prediction: Prediction = model.predict(images, timeout_s=1.0)
    by_attribute: Prediction = model.signatures.serving_default(image=images)
    output: npt.NDArray[Any] = by_attribute["class_id"]
    version: int | None = prediction.version
    return [int(value) for value in output.tolist()] + [version or 0]


def examples(client: Client) -> float:
    classification: Classification = client.classify("m", [{"x": 1.0}], signature="s")
    regression: Regression = client.regress("m", [{"x": 1.0}])
    for result in client.multi_inference("m", [{"x": 1.0}], [InferenceTask(method="regress")]):
        if isinstance(result, Classification):
            return result.rows[0][0].score
    client.reload_config([ModelConfig(name="m", base_path="/models/m", latest=2)])
    return classification.best()[0].score + float(regression.values[0])


def many(client: Client) -> dict[int, ModelyardError]:
    rows = ({"x": float(value)} for value in range(10))
    return {
        result.index: result.error
        for result in client.predict_many("m", rows, ManyOptions(batch_size=4))
        if result.error is not None
    }


async def asynchronously(url: str) -> int:
    client: AsyncClient = connect_async(url)
    async with client:
        model = await client.model("m")
        prediction: Prediction = await model.predict({"x": [1.0]})
        async for result in client.predict_many("m", [{"x": 1.0}]):
            prediction = await client.predict("m", {"x": [float(result.index)]})
        return len(prediction)


def main() -> None:
    options = ClientOptions(
        timeout_s=1, retry=RetryOptions(attempts=2), tls=TlsOptions(ca=Path("ca.pem")), compression="gzip"
    )
    with connect("https://localhost", options) as client:
        print(classes(client, np.zeros((1, 28, 28, 1), np.float32)), examples(client), many(client))
    print(asyncio.run(asynchronously("grpc://localhost")))


if __name__ == "__main__":
    main()
'''


def test_every_block_runs(tmp_path: Path) -> None:
    publish_classifier(tmp_path / "fashion", load_fashion_mnist(allow_download=False))
    save_tf1_half_plus_two(tmp_path / "half" / "3")
    with (
        serve(tmp_path / "fashion", model="fashion", log_dir=tmp_path) as fashion,
        serve(
            tmp_path / "half", model="half", log_dir=tmp_path, flags=["--allow_version_labels_for_unavailable_models"]
        ) as half,
    ):
        code = "\n".join(blocks("docs/clients.md", "python"))
        for port, real in (("8500", fashion.grpc_port), ("8501", fashion.rest_port), ("8600", half.grpc_port)):
            code = code.replace(f":{port}", f":{real}")
        (tmp_path / "page.py").write_text(code)
        result = subprocess.run(
            [sys.executable, "-W", "error::DeprecationWarning", "page.py"],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert result.returncode == 0, result.stderr
    for text in ("(2, 10) 1", "did you mean 'image'", "[2.5 3.5]", "ClassScore(label='half', score=2.5)", "[4.5]"):
        assert text in result.stdout
    assert "a fresh one" not in result.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "sample.py").write_text(PROJECT)
    return tmp_path


def check(command: list[str], folder: Path) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_project_elsewhere_passes_mypy_strict(project: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", sys.executable]
    # Nothing would read a cache.
    check([*command, "--cache-dir", os.devnull, "--config-file", "", "sample.py"], project)


def test_a_project_elsewhere_passes_pyright(project: Path) -> None:
    pyright = shutil.which("pyright", path=str(Path(sys.executable).parent)) or shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not installed")
    (project / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "include": ["sample.py"]}')
    check([pyright, "--pythonpath", sys.executable, "--project", str(project)], project)
