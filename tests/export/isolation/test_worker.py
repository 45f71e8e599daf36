"""A worker does what it is told, and its end is told; an export goes on without the format that ended it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import keras
import numpy as np
import psutil
import pytest

from modelyard.artifact import VerifyReport
from modelyard.errors import ConversionError, ExportError, InternalError, MissingDependencyError
from modelyard.export import ExportEvent, ExportOptions, Reference, Verification, export
from modelyard.export.formats import make_maker
from modelyard.export.formats._apart import _MODULES
from modelyard.export.isolation import Worker, WorkerEndedError, ended_by
from tests.support.exports import ENDED
from tests.support.orders import about, break_down, die, miss, refuse, work
from tests.support.waiting import until_ended

OPTIONS = ExportOptions(min_examples=16, latency_calls=10, measure_seconds=0.5, runtimes=(), isolate=True)


@pytest.fixture(scope="module")
def started() -> Iterator[list[Worker]]:
    started: list[Worker] = []
    yield started
    for worker in started:
        worker.close()


@pytest.fixture
def worker(started: list[Worker]) -> Worker:
    """One for all tests; another one after a test that has ended it."""
    if not started or not started[-1].alive:
        started.append(Worker(modules=_MODULES))
    return started[-1]


def test_where_it_works(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    found = worker.call(about, stage="s")
    # Keras takes as long to load as TensorFlow, and what is converted is saved graphs.
    assert found["loaded"] == {"tensorflow", "tf2onnx"} and found["gpu"] == "-1"
    # It goes first where memory runs out.
    assert found["score"] == 1000
    assert Path(found["temporary"]).is_dir() and found["temporary"] != tempfile.gettempdir()
    assert "said by the worker" in caplog.text


def test_what_it_keeps(worker: Worker) -> None:
    events: list[ExportEvent] = []
    kept = worker.keep(list, (1, 2), stage="s")
    worker.call("append", kept, 3, stage="s")
    assert worker.call(work, kept, stage="s", progress=events.append) == 6
    assert [each.stage for each in events] == ["adding"]
    worker.forget(kept, stage="s")
    with pytest.raises(InternalError, match="KeyError"):
        worker.call("append", kept, 4, stage="s")


def test_errors_come_as_they_are(worker: Worker) -> None:
    with pytest.raises(ConversionError, match=r"^A number was expected\.$") as caught:
        worker.call(refuse, stage="s")
    assert "invalid literal for int()" in str(caught.value.__cause__)
    with pytest.raises(MissingDependencyError, match="needs the package 'p'"):
        worker.call(miss, stage="s")
    with pytest.raises(InternalError, match=r"KeyError: 'what nobody expected' This is a bug\."):
        worker.call(break_down, stage="s")


def test_its_end_is_told(worker: Worker) -> None:
    temporary = Path(worker.call(about, stage="s")["temporary"])
    with pytest.raises(
        WorkerEndedError, match=r"A library ended the process \(SIGSEGV\) in the stage 'some work'\."
    ) as e:
        worker.call(die, signal.SIGSEGV, stage="some work")
    said = str(e.value.__cause__)
    assert "the last words of a library" in said and "Fatal Python error: Segmentation fault" in said
    assert not worker.alive
    with pytest.raises(WorkerEndedError):
        worker.call(about, stage="s")
    worker.close()
    assert not temporary.exists()


def test_its_end_is_told_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes before it serves, on a busy machine, leaves a traceback as well."""
    (tmp_path / "sitecustomize.py").write_text("import os; os.abort()", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    worker = Worker()
    with pytest.raises(WorkerEndedError, match=r"\(SIGABRT\) in the stage 's'") as caught:
        worker.call(about, stage="s")
    worker.close()
    assert "Fatal Python error: Aborted" in str(caught.value.__cause__)


def test_what_is_said_of_an_end() -> None:
    assert "want of memory (SIGKILL)" in ended_by(-signal.SIGKILL, "s")
    assert ended_by(3, "s") == "The process ended with exit code 3 in the stage 's'."


def test_it_does_not_outlive_who_started_it() -> None:
    program = (
        "import time; from modelyard.export.isolation import Worker; worker = Worker(); "
        "worker.call(len, (), stage=''); print(worker.pid, worker.folder, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    number, folder = process.stdout.readline().split()
    assert Path(folder).is_dir()
    process.kill()
    process.wait()
    process.stdout.close()
    until_ended(int(number))
    # What it had of temporary files went with it.
    assert not Path(folder).exists()


def test_it_removes_no_folder_but_its_own(tmp_path: Path) -> None:
    """Who started it ends while it loads its libraries, and has tidied up: the next best place for temporary files is
    everybody's."""
    others = tmp_path / "others"
    others.mkdir()
    (others / "file").write_text("kept")
    program = (
        "import os, shutil; from modelyard.export.isolation import Worker; worker = Worker(); "
        "print(worker.pid, flush=True); shutil.rmtree(worker.folder); os._exit(0)"
    )
    environment = {**os.environ, "TEMP": str(others)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    until_ended(int(done.stdout))
    assert (others / "file").read_text() == "kept"


def workers() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if any("._serve" in part for part in child.cmdline()):
                found.append(child)
    return found


_Killing = Callable[..., Callable[[ExportEvent], None]]


@pytest.fixture
def killing() -> Iterator[_Killing]:
    """Makes what ends the workers that an export starts, once in each of some stages."""
    over, threads = threading.Event(), list[threading.Thread]()
    # The other tests' worker is left alone, and what is started after this test.
    others = {each.pid for each in workers()}

    def make(*stages: str, number: signal.Signals = signal.SIGABRT) -> Callable[[ExportEvent], None]:
        left = list(stages)

        def progress(event: ExportEvent) -> None:
            # Where the last one has ended, there is none until it is needed.
            found = [each for each in workers() if each.pid not in others]
            if not left or event.stage != left[0] or not found:
                return
            left.pop(0)
            for worker in found:
                worker.send_signal(number)
            if event.stage.startswith("convert"):
                # One that has ended before it is asked is replaced: so that it ends before, and its heir in the middle.
                psutil.wait_procs(found)
                threads.append(threading.Thread(target=end_next, args=({each.pid for each in found}, number)))
                threads[-1].start()

        return progress

    def end_next(ended: set[int], number: signal.Signals) -> None:
        while not over.wait(0.005):
            for worker in workers():
                # It loads its libraries: Python has begun, and no order is done.
                if worker.pid not in ended | others and sum(worker.cpu_times()[:2]) > 0.5:
                    worker.send_signal(number)
                    return

    yield make
    over.set()
    for thread in threads:
        thread.join()


@pytest.fixture(scope="module")
def model() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(3, name="y")])


DATA = {"x": np.random.default_rng(0).random((16, 4), np.float32)}


def test_the_other_formats_are_published(
    model: keras.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture, killing: _Killing
) -> None:
    """The process of the one format is gone, and this one, which trains, is not."""
    options = ExportOptions(
        min_examples=16, latency_calls=10, measure_seconds=0.5, runtimes=(), isolate=True, optional=("onnx",)
    )
    progress = killing("convert onnx")
    report = export(model, tmp_path / "m", data=DATA, options=options, progress=progress)
    assert set(report.manifest.formats) == {"saved_model", "tflite"}
    assert set(report.manifest.absent) == {"onnx"}
    reason = report.manifest.absent["onnx"]
    assert re.fullmatch(rf"Format onnx: {ENDED} 'convert onnx'\.", reason)
    assert {each.runtime for each in report.manifest.latency} == {"tensorflow", "litert"}
    assert f"onnx: left out. {reason}" in str(report)
    (log,) = re.findall(r"What the libraries said: (\S+)", caplog.text)
    assert "Fatal Python error: Aborted" in Path(log).read_text("utf-8")
    Path(log).unlink()


def test_all_formats_that_fail_are_told_at_once(model: keras.Model, tmp_path: Path, killing: _Killing) -> None:
    with pytest.raises(ConversionError) as caught:
        export(
            model,
            tmp_path / "m",
            data=DATA,
            options=OPTIONS,
            progress=killing("convert onnx", "convert tflite", number=signal.SIGKILL),
        )
    message = caught.value.message
    for name in ("onnx", "tflite"):
        assert (
            f"Format {name}: The process was killed, most likely for want of memory (SIGKILL) in the stage " in message
        )
    assert "To publish without them: --optional onnx --optional tflite (in Python ExportOptions.optional)." in message
    logs = re.findall(r"/\S+\.log", message)
    assert len(logs) == 2
    for log in logs:
        Path(log).unlink()
    assert list((tmp_path / "m").iterdir()) == []


def test_what_ends_while_it_is_measured_is_given_up(model: keras.Model, tmp_path: Path, killing: _Killing) -> None:
    options = replace(OPTIONS, formats=("saved_model", "onnx"), optional=("onnx",))
    report = export(model, tmp_path / "m", data=DATA, options=options, progress=killing("measure"))
    assert set(report.manifest.formats) == {"saved_model"}
    reason = report.manifest.absent["onnx"]
    assert re.search(rf"{ENDED} 'measure onnxruntime with 1 thread'\.$", reason)
    assert not (report.version.path / "onnx").exists()


def test_a_variant_or_a_further_runtime_is_given_up_alone(tmp_path: Path) -> None:
    verified = VerifyReport(examples=1, batch_sizes=(1,), max_abs_error=0.0, max_rel_error=0.0)
    check = Verification(format="onnx", runtime={}, report=verified, histogram=(), others={"openvino": verified})
    maker = make_maker(cast(Reference, None), tmp_path, OPTIONS)
    maker.checks.update({"onnx": check, "onnx.int8": replace(check, precision="int8", others={})})
    (tmp_path / "onnx" / "int8").mkdir(parents=True)
    assert maker.drop("onnx", "float32", "openvino", "reason one")
    assert maker.drop("onnx", "int8", "onnxruntime", "reason two")
    assert not maker.drop("onnx", "float32", "onnxruntime", "reason three")
    assert set(maker.checks) == {"onnx"} and not maker.checks["onnx"].others
    assert [(each.runtime, each.reason) for each in maker.refused] == [
        ("openvino", "reason one"),
        ("onnxruntime", "reason two"),
    ]
    assert not (tmp_path / "onnx" / "int8").exists()


def test_a_file_is_exported_elsewhere_from_the_start(model: keras.Model, tmp_path: Path, killing: _Killing) -> None:
    here = replace(OPTIONS, isolate=False)
    report = export(model, tmp_path / "m", data=DATA, options=here, formats=("onnx",))
    # The signal may come when the worker is one stage further, which is why that one takes some time.
    stage = r"(verify onnx serving_default|measure[^']*)"
    with pytest.raises(ExportError, match=rf"{ENDED} '{stage}'\. Nothing was publ"):
        export(
            report.version.path / "onnx" / "serving_default.onnx",
            tmp_path / "again",
            data=DATA,
            options=replace(OPTIONS, latency_calls=200_000),
            progress=killing("verify onnx serving_default"),
        )
    assert list((tmp_path / "again").iterdir()) == []
