"""docs/batch.md: every block runs where its engine is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

from modelyard.training.data import load_fashion_mnist
from tests.support.classifier import publish_classifier
from tests.support.pages import ROOT

TEXT = (ROOT / "docs" / "batch.md").read_text("utf-8")
#: What each block needs, in their order.
ENGINES = ("modelyard", "ray", "pyspark", "mlflow", "apache_beam")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_blocks_of_the_page(engine: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == len(ENGINES)
    if find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed: modelyard[{engine.removeprefix('py')}]")
    publish_classifier(tmp_path / "repository" / "fashion", load_fashion_mnist())
    if engine in ("ray", "pyspark"):
        images = list(np.zeros((5, 784), np.float32))
        pd.DataFrame({"id": np.arange(5), "image": images}).to_parquet(tmp_path / "images.parquet")
    code = blocks[ENGINES.index(engine)]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        # MLflow without a database has files only.
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "MLFLOW_TRACKING_URI": (tmp_path / "runs").as_uri(),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    if engine == "modelyard":
        assert re.match(r"\[0 1\] \[b'.*' b'.*'\]", done.stdout)
    elif engine == "apache_beam":
        assert re.match(r"1,\w+", (tmp_path / "labels-00000-of-00001").read_text())
    elif engine != "mlflow":
        found = pd.read_parquet(tmp_path / "labels")
        assert sorted(found["id"]) == [*range(5)] and len(found["label"]) == 5
