"""The progress bar: on a terminal, and on none."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from modelyard.clients import ManyOptions, ProgressBar, connect
from modelyard.clients.values import count_rows
from modelyard.errors import ConfigurationError
from tests.clients.conftest import url_of
from tests.support.server import RunningServer


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def last(text: str) -> str:
    return text.rstrip("\n").rpartition("\r\x1b[K")[2]


def test_a_bar_for_a_known_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    screen = Terminal()
    with ProgressBar(2000, file=screen) as bar:
        bar(500, 0)
        assert last(screen.getvalue()).startswith(f"[{'#' * 10}{'.' * 30}]  25% 500/2,000 rows, ")
        assert screen.getvalue().endswith(" left")
        # Too soon to be seen.
        drawn = len(screen.getvalue())
        bar(501, 1)
        assert len(screen.getvalue()) == drawn
        bar.write("row 501: bad")
        assert "\r\x1b[Krow 501: bad\n" in screen.getvalue()
        assert ", 1 failed, " in last(screen.getvalue())
        bar(2000, 1)
    assert last(screen.getvalue()).startswith(f"[{'#' * 40}] 100% 2,000/2,000 rows, 1 failed, ")
    assert screen.getvalue().endswith("\n")
    bar.close()
    assert screen.getvalue().count("\n") == 2


def test_no_bar_for_an_unknown_number_or_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    ProgressBar(file=screen)(1234, 0)
    assert last(screen.getvalue()).startswith("1,234 rows, ")
    monkeypatch.setenv("COLUMNS", "20")
    narrow = Terminal()
    ProgressBar(10_000, file=narrow)(1234, 0)
    assert last(narrow.getvalue()) == "1,234/10,000 rows, "


def test_nothing_where_there_is_no_terminal() -> None:
    file = io.StringIO()
    with ProgressBar(10, file=file) as bar:
        bar(5, 0)
        bar.write("row 5: bad")
    assert file.getvalue() == "row 5: bad\n"
    with pytest.raises(ConfigurationError, match="total=-1"):
        ProgressBar(-1)


def test_rows_are_counted(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((7, 2)))
    (tmp_path / "b.jsonl").write_text('{"x": 1}\n\n{"x": 2}\n')
    (tmp_path / "c.csv").write_text('x,y\n1,"two\nlines"\n\n3,4\n')
    files = [tmp_path / name for name in ("a.npy", "b.jsonl", "c.csv", "d.png")]
    assert count_rows(files) == 7 + 2 + 2 + 1
    assert count_rows([*files, tmp_path / "e.tfrecord"]) is None
    assert count_rows([tmp_path / "absent.csv"]) is None
    (tmp_path / "empty.npy").touch()
    assert count_rows([tmp_path / "empty.npy"]) is None


def test_predict_many_draws_it(affine_server: RunningServer) -> None:
    screen = Terminal()
    with connect(url_of(affine_server, "grpc")) as client, ProgressBar(100, file=screen) as bar:
        rows = ({"x": np.float32(index)} for index in range(100))
        assert len(list(client.predict_many("affine", rows, ManyOptions(batch_size=10, progress=bar)))) == 100
    assert " 100/100 rows, " in last(screen.getvalue())


def test_the_command_draws_it_on_a_terminal(affine_server: RunningServer, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(200, dtype=np.float32))
    command = [
        sys.executable, "-c", "import sys; from modelyard.cli import main; sys.exit(main())",
        "predict", "affine", str(tmp_path / "x.npy"),
        "--server", url_of(affine_server, "grpc"), "--output", str(tmp_path / "out.jsonl"),
    ]  # fmt: skip
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": "90"}
    with subprocess.Popen(
        command,
        stderr=theirs,
        env=env,
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:
                break
            if not part:
                break
            shown += part
    os.close(ours)
    assert process.returncode == 0
    assert " 100% 200/200 rows, " in shown.decode()
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 200
