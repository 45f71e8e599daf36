"""docs/importing.md: every block runs where its libraries are installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from modelyard.artifact import read_manifest
from modelyard.serving import LoadOptions, load_servable
from tests.support.exports import EXPORT_HERE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "importing.md"
#: By heading, what its block needs beside modelyard, and the model that it publishes.
SOURCES = {
    "PyTorch": ("torch", "flowers"),
    "scikit-learn": ("skl2onnx", "tumours"),
    "XGBoost and LightGBM": ("onnxmltools", "boosted"),
    "Any ONNX file": ("skl2onnx", "line"),
    "JAX": ("jax", "jax_flowers"),
    "Hugging Face": ("transformers", "sentiment"),
}
#: A model of the architecture that the page downloads, small and with random weights.
HUGGING_FACE = """
from transformers import DistilBertConfig, DistilBertForSequenceClassification
config = DistilBertConfig(vocab_size=100, dim=16, hidden_dim=32, n_heads=2, n_layers=2)
DistilBertForSequenceClassification(config).save_pretrained({path!r})
"""


def blocks() -> dict[str, str]:
    sections = re.split(r"^## (.+)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    found = dict(zip(sections[::2], sections[1::2], strict=True))
    # A section of commands alone has its own test: that of MLflow's folders, tests/serving/test_mlflow.py.
    return {
        title: block[1]
        for title, text in found.items()
        if (block := re.search(r"```python\n(.*?)```", text, re.DOTALL))
    }


def run(code: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_every_block_has_its_test() -> None:
    assert set(blocks()) == set(SOURCES)


@pytest.mark.parametrize("title", SOURCES)
def test_the_blocks_of_the_page(title: str, tmp_path: Path) -> None:
    library, model = SOURCES[title]
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    block = blocks()[title]
    if title == "Hugging Face":
        (name,) = re.findall(r'from_pretrained\("(.*?)"\)', block)
        run(HUGGING_FACE.format(path=name), tmp_path)
    run(EXPORT_HERE + block, tmp_path)
    path = tmp_path / "models" / model / "1"
    manifest = read_manifest(path)
    assert set(manifest.formats) == ({"saved_model", "tflite"} if title == "JAX" else {"onnx"})
    servable = load_servable(model, 1, path, LoadOptions())
    signature = servable.signatures["serving_default"]
    inputs = {
        spec.name: np.ones((3, *(4 if size < 0 else size for size in (spec.shape or ())[1:])), spec.dtype)
        for spec in signature.inputs
    }
    outputs = servable.run(signature, inputs, [spec.name for spec in signature.outputs])
    assert {len(array) for array in outputs.values()} == {3}
    none = servable.run(
        signature, {name: array[:0] for name, array in inputs.items()}, [spec.name for spec in signature.outputs]
    )
    assert {name: array.shape[1:] for name, array in none.items()} == {
        name: array.shape[1:] for name, array in outputs.items()
    }
