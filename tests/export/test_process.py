"""``modelyard export`` where a library ends the process: it says so, cleans up, and leaves out what is optional."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import pytest

from modelyard.artifact import read_manifest
from tests.support.exports import ENDED
from tests.support.recurrent import recurrent_model
from tests.support.waiting import until_ended

EXPORT = [str(Path(sys.executable).with_name("modelyard")), "export"]
#: Without a process for converters, which would load TensorFlow once more.
ALONE = ["--format", "saved_model"]


def arguments(source: Path, data: Path, repository: Path, *more: str) -> list[str]:
    flags = ["--data", str(data), "--repository", str(repository), "--min-examples", "16", "--measure-seconds", "0.5"]
    return [*EXPORT, str(source), *flags, *more]


def test_a_library_that_ends_the_process(tmp_path: Path) -> None:
    """onnxruntime's GRU aborts on steps that there are none of."""
    recurrent_model("GRU", tmp_path / "gru.onnx")
    np.savez(tmp_path / "nothing.npz", x=np.zeros((16, 0, 3), np.float32))
    done = subprocess.run(
        arguments(tmp_path / "gru.onnx", tmp_path / "nothing.npz", tmp_path / "repository"),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("modelyard export: ")]
    assert re.match(f"modelyard export: {ENDED} ", line)
    assert "Nothing was published." in line
    assert list((tmp_path / "repository").glob("*/*")) == []
    (log,) = re.findall(r"What the libraries said: (\S+)$", line)
    assert "Fatal Python error: Aborted" in Path(log).read_text("utf-8")
    Path(log).unlink()


# What Keras itself does while it saves.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    keras.utils.set_random_seed(1)
    keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(3)]).save(folder / "m.keras")
    np.savez(folder / "data.npz", x=np.random.default_rng(0).random((16, 4), np.float32))
    return folder


def children(number: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{number}/task/{number}/children").read_text().split()]


def worker_of(number: int) -> int:
    """The process for converters that a process has started."""
    (found,) = [each for each in children(number) if b"isolation._serve" in Path(f"/proc/{each}/cmdline").read_bytes()]
    return found


def end_in(
    command: list[str], stage: str, number: signal.Signals, *, parent: bool = False, worker: bool = False
) -> tuple[int, str]:
    """Runs a command, and sends a signal, once, when it says that the stage begins; its exit code and what it said."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    timer = threading.Timer(300, process.kill)
    timer.start()
    assert process.stderr is not None
    lines, sent = [], False
    for line in process.stderr:
        lines.append(line)
        if line == f"export: {stage}\n" and not sent:
            sent = True
            child = children(process.pid)[0]
            os.kill(process.pid if parent else worker_of(child) if worker else child, number)
    code = process.wait()
    timer.cancel()
    assert process.stdout is not None
    process.stdout.close()
    process.stderr.close()
    assert sent, lines
    return code, "".join(lines)


def test_what_tensorflow_ends_is_told(source: Path, tmp_path: Path) -> None:
    command = arguments(source / "m.keras", source / "data.npz", tmp_path / "repository", *ALONE)
    code, said = end_in(command, "convert saved_model", signal.SIGSEGV)
    assert code == 128 + signal.SIGSEGV
    assert "A library ended the process (SIGSEGV) in the stage 'convert saved_model'. Nothing was published." in said
    assert list((tmp_path / "repository" / "m").iterdir()) == []


def test_a_format_that_is_optional_is_left_out(source: Path, tmp_path: Path) -> None:
    command = arguments(source / "m.keras", source / "data.npz", tmp_path / "repository", "--optional", "onnx")
    code, said = end_in(command, "convert onnx", signal.SIGSEGV, worker=True)
    assert code == 0
    (version,) = (tmp_path / "repository" / "m").iterdir()
    manifest = read_manifest(version)
    assert set(manifest.formats) == {"saved_model", "tflite"}
    assert manifest.absent == {
        "onnx": "Format onnx: A library ended the process (SIGSEGV) in the stage 'convert onnx'."
    }
    assert "SIGSEGV" in (version / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("number", "stage", "flags"),
    [
        (signal.SIGINT, "convert onnx", ["--optional", "onnx"]),
        (signal.SIGTERM, "convert saved_model", ALONE),
        (signal.SIGHUP, "convert saved_model", ALONE),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else "",
)
def test_signals_stop_it_cleanly(
    source: Path, tmp_path: Path, number: signal.Signals, stage: str, flags: list[str]
) -> None:
    command = arguments(source / "m.keras", source / "data.npz", tmp_path / "repository", *flags)
    code, said = end_in(command, stage, number, parent=True)
    assert code == 128 + number, said
    assert "modelyard export: stopped. Nothing was published." in said
    assert list((tmp_path / "repository" / "m").iterdir()) == []


def test_it_does_not_outlive_the_command(source: Path, tmp_path: Path) -> None:
    command = arguments(source / "m.keras", source / "data.npz", tmp_path / "repository")
    code, _ = end_in(command, "convert onnx", signal.SIGKILL, parent=True)
    assert code == -signal.SIGKILL
    (begun,) = (tmp_path / "repository" / "m").iterdir()
    number = int(begun.name.split("-")[1])
    until_ended(number)
    assert [each.name for each in (tmp_path / "repository" / "m").iterdir()] == [begun.name]
