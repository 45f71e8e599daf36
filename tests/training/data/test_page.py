"""The page on data: its image folder, from files to a signature, as a reader would do it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.artifact import Source
from modelyard.export import ExportOptions, export_model
from modelyard.training import InputRequest, restore
from tests.training.conftest import ROOT


def block(name: str) -> str:
    text = (ROOT / "docs" / "data.md").read_text("utf-8")
    found = re.search(rf"<!-- {name}: run by [^>]*-->\n\n```python\n(.*?)```", text, re.S)
    assert found is not None
    return found[1]


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "MODELYARD_DATA": "subset", "PHOTOS": "photos", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_image_folder_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "render.py").write_text(block("render"))
    (tmp_path / "photos_task.py").write_text(block("task"))
    run(tmp_path, "render.py")
    assert len(list((tmp_path / "photos").glob("*/*.jpeg"))) == 1000
    command = Path(sys.executable).with_name("modelyard")
    out = run(tmp_path, str(command), "train", "photos_task:PhotosTask", "--epochs", "6", "--model-dir", "run")
    assert "photos: 6 epochs" in out

    monkeypatch.setenv("PHOTOS", str(tmp_path / "photos"))
    spec = importlib.util.spec_from_file_location("photos_task", tmp_path / "photos_task.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    task: Any = module.PhotosTask()
    result = restore(tmp_path / "run", task)
    assert result.metrics["test_accuracy"] > 0.6
    options = ExportOptions(formats=("saved_model",), min_examples=64, measure_seconds=1)
    data = task.verification_data(100)
    report = export_model(
        task.root, task.signatures(), data, model_dir=tmp_path / "models" / "photos", source=Source(), options=options
    )
    served = tf.saved_model.load(str(report.version.path)).signatures["image_bytes"]
    images, labels = next(iter(task.eval_dataset(InputRequest(batch_size=200))))
    files = [path.read_bytes() for path in task.folder.test.paths]
    answer = served(image_bytes=tf.constant(files))
    # What evaluation measured is what a client gets for the files.
    np.testing.assert_allclose(answer["probabilities"], task.predict(images)["probabilities"], atol=1e-6)
    accuracy = np.mean(answer["class_id"].numpy() == labels.numpy())
    assert accuracy == pytest.approx(result.metrics["test_accuracy"], abs=1e-6)
    assert answer["label"].numpy()[0].decode() in task.folder.class_names
