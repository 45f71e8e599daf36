"""``modelyard run`` from end to end, as the demo runs it, on the shipped subset."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from modelyard.artifact import read_manifest, verify_files
from modelyard.pipeline import draw_predictions


def test_run_shows_every_format_over_both_protocols(tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).with_name("modelyard")), "run", "fashion", "--epochs", "1", "--calls", "20",
        "--repository", str(tmp_path / "repository"), "--run-dir", str(tmp_path / "run"),
    ]  # fmt: skip
    environment = {**os.environ, "MODELYARD_DATA": "subset", "TF_CPP_MIN_LOG_LEVEL": "2"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    for runtime in ("tensorflow", "onnxruntime", "litert"):
        for protocol in ("grpc", "rest"):
            rows = [line for line in result.stdout.splitlines() if runtime in line and protocol in line]
            assert len(rows) == 1, result.stdout
            assert "100.00%" in rows[0]
    version = tmp_path / "repository" / "fashion" / "1"
    manifest = read_manifest(version)
    verify_files(version, manifest)
    assert set(manifest.formats) == {"saved_model", "onnx", "tflite"}
    assert manifest.source.task == "fashion"
    assert "subset" in manifest.source.data
    assert str(version / "report.html") in result.stdout
    assert (version / "report.html").is_file()
    assert (tmp_path / "run" / "predictions.png").read_bytes().startswith(b"\x89PNG")
    # Ten images, each with its true class and six predictions.
    assert sum(line.count("│") == 8 for line in result.stdout.splitlines()) == 10


def test_an_unknown_task_names_the_nearest(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("modelyard")), "run", "fashoin", "--run-dir", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert "fashion" in result.stderr


@pytest.mark.parametrize("count", [1, 10])
def test_the_picture_has_a_tile_for_each_image(tmp_path: Path, count: int) -> None:
    from PIL import Image

    images = np.arange(count * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(count, 28, 28)
    path = tmp_path / "picture.png"
    draw_predictions(path, images, ["Bag"] * count, ["Bag", "Coat"] * 5)
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    # The first tile starts at the margin and is drawn six times its size.
    assert pixels[14 + 6 * 27, 14 + 6 * 5, 0] == images[0, 27, 5]
    assert pixels.shape[0] > 200 * -(-count // 5)
