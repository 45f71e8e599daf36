"""The ``modelyard`` command: dispatch, exit codes and what it says."""

from __future__ import annotations

import importlib.metadata
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from modelyard import cli
from modelyard.cli import _COMMANDS, main


def test_help_has_every_command_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, command in _COMMANDS.items():
        assert f"  {name} " in text
        assert command.summary in text
    assert "examples:" in text


@pytest.mark.parametrize("arguments", [["--verbose", "train", "x"], ["train", "x", "--verbose"]])
def test_verbose_is_for_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    _module(tmp_path, monkeypatch, "import os; print(argv, os.environ['TF_CPP_MIN_LOG_LEVEL']); return 0")
    assert main(arguments) == 0
    assert capsys.readouterr().out == "['x'] 0\n"
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    assert main(["train", "--", "--verbose"]) == 0
    assert capsys.readouterr().out == "['--', '--verbose'] 2\n"


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: modelyard COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "hint"), [("trian", "Did you mean 'train'?"), ("xyzzy", "Expected one of run, data, train, evaluate")]
)
def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str], name: str, hint: str) -> None:
    assert main([name]) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version(capsys: pytest.CaptureFixture[str], word: str) -> None:
    assert main([word]) == 0
    assert capsys.readouterr().out == f"modelyard {importlib.metadata.version('modelyard')}\n"


def _module(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Makes ``modelyard train`` run a module with this code as the body of its main."""
    (folder / "cli_target.py").write_text("def main(argv):\n" + "".join(f"    {line}\n" for line in code.splitlines()))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "cli_target", raising=False)
    monkeypatch.setitem(cli._COMMANDS, "train", cli._Command(module="cli_target", extra="training", summary=""))


def test_arguments_and_exit_code_pass_through_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _module(tmp_path, monkeypatch, "import sys; sys.stdout.write(repr(argv)); return 7")
    assert main(["train", "--help", "-x", "--", "--version", "a b"]) == 7
    assert capsys.readouterr().out == "['--help', '-x', '--', '--version', 'a b']"


@pytest.mark.parametrize("package", ["tensorflow", "tensorflow.keras.layers", "locust"])
def test_a_missing_extra_gives_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str
) -> None:
    _module(tmp_path, monkeypatch, f"raise ModuleNotFoundError('no', name={package!r})")
    assert main(["train"]) == 2
    text = capsys.readouterr().err
    assert f"needs the package {package.partition('.')[0]!r}" in text
    assert "pip install 'modelyard[training]'" in text


def test_any_other_missing_module_is_a_bug_and_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _module(tmp_path, monkeypatch, "import modelyard_has_no_such_module")
    with pytest.raises(ModuleNotFoundError, match="modelyard_has_no_such_module"):
        main(["train"])


def test_errors_go_to_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _module(tmp_path, monkeypatch, "from modelyard.errors import TrainingError\nraise TrainingError('received 1')")
    assert main(["train"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "modelyard train: received 1\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "m", "a.png", "--resume"],
        ["predict", "m", "a.png", "--server", "foo://host"],
        ["keys", "new", "shop", "--scope", "everything"],
        ["batch", "m", "absent.jsonl", "--output", "out"],
        ["serve"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_no_command_can_do_is_a_usage_error_of_all(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODEL_NAME", raising=False)
    assert main(arguments) == 2


def test_usage_errors_of_a_command_exit_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _module(tmp_path, monkeypatch, "import argparse; argparse.ArgumentParser('t').parse_args(argv)")
    with pytest.raises(SystemExit) as caught:
        main(["train", "--nope"])
    assert caught.value.code == 2
    assert "--nope" in capsys.readouterr().err


def test_ctrl_c_ends_with_130(tmp_path: Path) -> None:
    (tmp_path / "cli_target.py").write_text(
        "import sys, time\ndef main(argv):\n    sys.stdout.write('up\\n'); sys.stdout.flush(); time.sleep(60)\n"
    )
    script = (
        # A process started in the background may have inherited that Ctrl-C is ignored.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from modelyard import cli; "
        "cli._COMMANDS['train'] = cli._Command(module='cli_target', extra='', summary=''); "
        "raise SystemExit(cli.main(['train']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=20)
    assert (process.returncode, text) == (130, "modelyard train: interrupted\n")


def test_a_reader_that_goes_away_is_no_crash() -> None:
    script = "import sys; from modelyard.cli import main; sys.exit(main(['--help']))"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.close()
        process.wait(timeout=20)
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_behind_the_standard_output_is_an_error() -> None:
    script = "import sys; from modelyard.cli import main; sys.exit(main(['--help']))"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr == "modelyard: the output cannot be written: No space left on device.\n"


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_every_command_has_help(name: str) -> None:
    """The modules that the table names exist and take ``--help``."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; from modelyard.cli import main; sys.exit(main([{name!r}, '--help']))"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"modelyard {name}" in done.stdout


def test_the_command_itself_imports_no_room() -> None:
    script = "import sys, modelyard.cli; print(sorted(n for n in sys.modules if n.startswith('modelyard')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert (
        done.stdout.strip()
        == "['modelyard', 'modelyard.cli', 'modelyard.console', 'modelyard.errors', 'modelyard.lazy']"
    )
