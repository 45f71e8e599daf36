"""The page on data: a task in twenty lines, killed twice, ends with the same numbers, is exported and is served."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from modelyard.clients import connect
from modelyard.training.checkpoint import list_checkpoints, read_state
from tests.support.server import serve
from tests.support.waiting import until
from tests.training.conftest import ROOT

#: Steps in all, 15 in each epoch, and checkpoints that do not fit into epochs.
STEPS, EVERY = 45, 7
TRAIN = [
    "train", "photos_task:PhotosTask", "--epochs", "3", "--steps-per-loop", "1", "--checkpoint-every", str(EVERY),
]  # fmt: skip


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


def logged_step(model_dir: Path) -> int:
    path = model_dir / "log.jsonl"
    lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else -1


def kill_at(folder: Path, step: int) -> None:
    process = start(folder, *TRAIN, "--model-dir", "killed")
    # A process that goes on starts below the step the log had: wait for its own line.
    until(lambda: logged_step(folder / "killed") >= step or process.poll() is not None, 240, poll_s=0.002)
    process.send_signal(signal.SIGKILL)
    out, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, out


def outcome(model_dir: Path) -> tuple[list[Any], dict[str, bytes]]:
    path = list_checkpoints(model_dir / "checkpoints")[-1]
    state = read_state(path)
    assert state.step == STEPS
    reader = tf.train.load_checkpoint(str(path / "variables"))
    names = [name for name in reader.get_variable_to_shape_map() if name != "_CHECKPOINTABLE_OBJECT_GRAPH"]
    values = {name: np.asarray(reader.get_tensor(name)).tobytes() for name in names}
    return [(epoch.step, epoch.train, epoch.evaluation) for epoch in state.history], values


def test_a_task_of_twenty_lines_ends_bit_for_bit_the_same_where_it_is_killed_and_is_served(
    tmp_path: Path,
) -> None:
    task = block("task")
    assert len([line for line in task.splitlines() if line.strip()]) <= 20
    (tmp_path / "photos_task.py").write_text(task)
    (tmp_path / "render.py").write_text(block("render"))
    environment = {**os.environ, "MODELYARD_DATA": "subset"}
    subprocess.run([sys.executable, "render.py"], cwd=tmp_path, env=environment, check=True, timeout=240)
    assert len(list((tmp_path / "photos").glob("*/*.jpeg"))) == 1000

    whole = run(tmp_path, *TRAIN, "--model-dir", "whole")
    assert "photos: 3 epochs" in whole and "Went on" not in whole
    # Where in a step that is, and in the writing of a checkpoint, is chance: the log is behind the run.
    first, second = 10, 27
    kill_at(tmp_path, first)
    kill_at(tmp_path, second)
    (step,) = re.findall(r"Went on from step (\d+)", run(tmp_path, *TRAIN, "--model-dir", "killed"))
    # Of a checkpoint every few steps the newest may have been in the writing.
    assert int(step) >= second - 2 * EVERY
    numbers, values = outcome(tmp_path / "whole")
    assert len(values) > 15
    # Bit for bit.
    assert outcome(tmp_path / "killed") == (numbers, values), f"killed at steps {first} and {second}"
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
