"""SIGKILL in the middle, twice, and the same numbers in the end."""

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

from modelyard.training.checkpoint import list_checkpoints, read_state
from tests.support.waiting import until
from tests.training.conftest import ROOT

#: 32 steps of 64 in each epoch of the subset, and checkpoints that do not fit into epochs.
STEPS = 64
ARGUMENTS = ["fashion", "--epochs", "2", "--seed", "5", "--steps-per-loop", "1", "--checkpoint-every", "7"]


def start(model_dir: Path) -> subprocess.Popen[str]:
    code = "import sys; from modelyard.training.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, *ARGUMENTS, "--model-dir", str(model_dir)],
        cwd=ROOT,
        env={**os.environ, "MODELYARD_DATA": "subset", "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def end(model_dir: Path) -> str:
    """Runs it to its end; returns what it says there."""
    with start(model_dir) as process:
        said, _ = process.communicate(timeout=180)
    assert process.returncode == 0
    return said


def logged_step(model_dir: Path) -> int:
    path = model_dir / "log.jsonl"
    lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else -1


def kill_at(model_dir: Path, step: int) -> None:
    with start(model_dir) as process:
        # A process that goes on starts below the step the log had: wait for its own line.
        until(lambda: logged_step(model_dir) >= step or process.poll() is not None, 120, poll_s=0.002)
        process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL, f"the run ended before step {step}"


def outcome(model_dir: Path) -> tuple[list[Any], dict[str, bytes]]:
    path = list_checkpoints(model_dir / "checkpoints")[-1]
    state = read_state(path)
    assert state.step == STEPS
    reader = tf.train.load_checkpoint(str(path / "variables"))
    names = [name for name in reader.get_variable_to_shape_map() if name != "_CHECKPOINTABLE_OBJECT_GRAPH"]
    values = {name: np.asarray(reader.get_tensor(name)).tobytes() for name in names}
    return [(epoch.step, epoch.train, epoch.evaluation) for epoch in state.history], values


def test_a_killed_run_ends_bit_for_bit_like_one_that_was_not(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert "Went on" not in end(whole)
    # Where in a step that is, and in the writing of a checkpoint, is chance: the log is behind the run.
    first, second = 20, 41
    kill_at(killed, first)
    kill_at(killed, second)
    (step,) = re.findall(r"Went on from step (\d+)", end(killed))
    # Of a checkpoint every seven steps the newest may have been in the writing.
    assert int(step) >= second - 2 * 7
    numbers, values = outcome(whole)
    assert len(values) > 20
    assert outcome(killed) == (numbers, values), f"killed at steps {first} and {second}"
