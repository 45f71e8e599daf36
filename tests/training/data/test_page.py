"""The page on data: a task in twenty lines is killed, resumed, exported and served, as a reader would do it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from modelyard.clients import connect
from modelyard.training.checkpoint import list_checkpoints, read_state
from tests.support.server import serve
from tests.support.waiting import until
from tests.training.conftest import ROOT

TRAIN = ["train", "photos_task:PhotosTask", "--epochs", "3", "--steps-per-loop", "1", "--checkpoint-every", "3"]


def block(name: str) -> str:
    text = (ROOT / "docs" / "data.md").read_text("utf-8")
    found = re.search(rf"<!-- {name}: run by [^>]*-->\n\n```python\n(.*?)```", text, re.S)
    assert found is not None
    return found[1]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("modelyard")), *arguments]
    environment = {**os.environ, "MODELYARD_DATA": "subset", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def run(folder: Path, *arguments: str) -> str:
    process = start(folder, *arguments)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    return out


def kill(folder: Path, checkpoints: Path) -> None:
    """Kills a run when its second checkpoint is in place."""
    process = start(folder, *TRAIN, "--model-dir", "killed")
    until(lambda: len(list_checkpoints(checkpoints)) >= 2 or process.poll() is not None, 240, poll_s=0.005)
    process.send_signal(signal.SIGKILL)
    out, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, out


def outcome(model_dir: Path) -> tuple[list[object], dict[str, bytes]]:
    path = list_checkpoints(model_dir / "checkpoints")[-1]
    reader = tf.train.load_checkpoint(str(path / "variables"))
    names = [name for name in reader.get_variable_to_shape_map() if name != "_CHECKPOINTABLE_OBJECT_GRAPH"]
    history = [(epoch.step, epoch.train, epoch.evaluation) for epoch in read_state(path).history]
    return [*history], {name: np.asarray(reader.get_tensor(name)).tobytes() for name in names}


def test_a_task_of_twenty_lines_is_killed_resumed_exported_and_served(tmp_path: Path) -> None:
    task = block("task")
    assert len([line for line in task.splitlines() if line.strip()]) <= 20
    (tmp_path / "photos_task.py").write_text(task)
    (tmp_path / "render.py").write_text(block("render"))
    environment = {**os.environ, "MODELYARD_DATA": "subset"}
    subprocess.run([sys.executable, "render.py"], cwd=tmp_path, env=environment, check=True, timeout=240)
    assert len(list((tmp_path / "photos").glob("*/*.jpeg"))) == 1000

    assert "photos: 3 epochs" in run(tmp_path, *TRAIN, "--model-dir", "whole")
    kill(tmp_path, tmp_path / "killed" / "checkpoints")
    run(tmp_path, *TRAIN, "--model-dir", "killed")
    numbers, values = outcome(tmp_path / "whole")
    assert outcome(tmp_path / "killed") == (numbers, values)
    accuracy = read_state(list_checkpoints(tmp_path / "killed" / "checkpoints")[-1]).history[-1].evaluation["accuracy"]
    assert accuracy > 0.5

    export = ["export", "killed", "--repository", "models"]
    run(tmp_path, *export, "--format", "onnx", "--min-examples", "64", "--examples", "100")
    files = sorted((tmp_path / "photos").glob("*/*.jpeg"))[::10]
    with serve(tmp_path / "models" / "photos", model="photos", log_dir=tmp_path) as server:
        with connect(f"grpc://{server.grpc_address}") as client:
            images = {"image_bytes": [path.read_bytes() for path in files]}
            answer = client.predict("photos", images, signature="image_bytes")
    right = [label.decode() == path.parent.name for label, path in zip(answer["label"], files, strict=True)]
    assert np.mean(right) > 0.5
