"""What the processes of the command line let libraries say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from modelyard.console import run_command, write_error
from modelyard.errors import ConfigurationError, TrainingError

#: Stands in for the one that is installed: fast, and able to say anything.
_TENSORFLOW = """
import os
from types import SimpleNamespace
os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\\n")
os.write(2, b"I0000 00:00:1795398355.017175   29022 port.cc:153] oneDNN custom operations are on.\\n")
os.write(2, b"something that matters\\n")
failure = b"E0000 00:00:1795398357.9 1 cuda_platform.cc:52] failed call to cuInit: X\\n"
config = SimpleNamespace(list_physical_devices=lambda: os.write(2, failure))
{more}
"""
_QUIET = """
from modelyard.console import quiet_libraries
quiet_libraries()
import tensorflow, os
os.write(2, b"I0000 later")
"""


_ABORT = """
os.write(2, b"F0000 00:00:1795398355.0 1 cpu_feature_guard.cc:164] TensorFlow was compiled to use AVX instructions\\n")
os.abort()
"""


def _import_tensorflow(
    folder: Path, level: str | None, *, more: str = "", code: str = _QUIET, under: Sequence[str] = ()
) -> str:
    (folder / "tensorflow.py").write_text(_TENSORFLOW.format(more=more))
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    if level is not None:
        environment["TF_CPP_MIN_LOG_LEVEL"] = level
    command = [*under, sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False).stderr


@pytest.mark.parametrize("level", [None, "2", "3"])
def test_banners_are_taken_out_of_an_import_and_nothing_else(tmp_path: Path, level: str | None) -> None:
    assert _import_tensorflow(tmp_path, level) == "something that matters\nI0000 later"


def test_an_import_that_fails_says_why(tmp_path: Path) -> None:
    text = _import_tensorflow(tmp_path, None, more="raise ImportError('no such library')")
    assert "something that matters\n" in text
    assert "ImportError: no such library" in text
    assert "oneDNN" not in text


def test_an_import_is_not_held_up_by_looking_for_garbage(tmp_path: Path) -> None:
    said = "import gc\nos.write(2, b'%d\\n' % gc.isenabled())"
    text = _import_tensorflow(tmp_path, None, more=said, code=f"{_QUIET}{said}")
    assert text == "something that matters\n0\nI0000 later1\n"


def test_last_words_of_a_library_that_ends_the_process(tmp_path: Path) -> None:
    text = _import_tensorflow(tmp_path, None, more=_ABORT)
    assert text.startswith("something that matters\nF0000 ")
    assert text.endswith("compiled to use AVX instructions\n")


def test_last_words_of_process_1(tmp_path: Path) -> None:
    """The kernel ends all processes of a container with the first one."""
    first = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if shutil.which("unshare") is None or subprocess.run([*first, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs user namespaces")
    assert "compiled to use AVX instructions\n" in _import_tensorflow(tmp_path, None, more=_ABORT, under=first)


_NO_CHILD_LEFT = """
import time
end = time.monotonic() + 30
while True:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        break
    assert time.monotonic() < end, "a child is left"
    time.sleep(0.01)
"""


def test_the_filter_is_gone_after_the_import(tmp_path: Path) -> None:
    text = _import_tensorflow(tmp_path, None, code=_QUIET + _NO_CHILD_LEFT.replace("+ 30", "+ 0"))
    assert text == "something that matters\nI0000 later"


def test_a_process_that_the_import_starts_does_not_hold_it_up(tmp_path: Path) -> None:
    more = "import subprocess\nchild = subprocess.Popen(['sh', '-c', 'read line; echo from the child >&2'], stdin=-1)"
    end = "\ntensorflow.child.communicate(b'now')\n"
    text = _import_tensorflow(tmp_path, None, more=more, code=_QUIET + end + _NO_CHILD_LEFT)
    assert text == "something that matters\nI0000 laterfrom the child\n"


def test_whoever_wants_to_see_banners_does(tmp_path: Path) -> None:
    text = _import_tensorflow(tmp_path, "0")
    assert "oneDNN custom operations are on" in text
    # The devices are looked for where somebody uses them.
    assert "cuInit" not in text


def test_tensorflow_itself_is_quiet() -> None:
    pytest.importorskip("tensorflow")
    code = f"{_QUIET}print(int(tensorflow.constant(1) + 1))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert (done.stdout, done.stderr) == ("2\n", "I0000 later")


_NO_KERAS = """
import sys
from modelyard.console import leave_out_keras
with leave_out_keras():
    import tensorflow
print("keras" in sys.modules)
from tensorflow.keras import layers
import keras
print(layers.Dense is keras.layers.Dense is tensorflow.keras.layers.Dense)
with leave_out_keras():
    import keras.src
print(keras.src is sys.modules["keras.src"])
"""


def test_tensorflow_without_keras_and_keras_when_it_is_wanted() -> None:
    pytest.importorskip("tensorflow")
    done = subprocess.run([sys.executable, "-c", _NO_KERAS], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False", "True", "True"]


def test_openvino_reports_nothing() -> None:
    code = "from modelyard.console import quiet_libraries; quiet_libraries(); import openvino, sys; print(*sys.modules)"
    pytest.importorskip("openvino")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "openvino.tools.ovc.telemetry_stub" in done.stdout.split()


def test_a_closed_standard_error_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text(
        "from types import SimpleNamespace as S\nconfig = S(list_physical_devices=dir)"
    )
    code = "import os; os.close(2); from modelyard.console import quiet_libraries; quiet_libraries(); import tensorflow"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "2"}
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, check=True)


def test_errors_of_commands_hold_no_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    write_error("train", "no task \x1b[31mred\nline two")
    assert capsys.readouterr().err == "modelyard train: no task \\x1b[31mred\nline two\n"


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ConfigurationError("No file \a."), (2, "modelyard data bench: No file \\x07.\n")),
        (TrainingError("Not\na step."), (1, "modelyard data bench: Not\na step.\n")),
        (KeyboardInterrupt(), (130, "modelyard data bench: stopped.\n")),
    ],
)
def test_the_end_of_a_command(
    raised: BaseException, expected: tuple[int, str], capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        raise raised

    assert (run_command("data bench", work, stopped="stopped."), capsys.readouterr().err) == expected
    assert (run_command("data bench", lambda: 3), run_command("data bench", lambda: None)) == (3, 0)
