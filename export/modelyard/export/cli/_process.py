"""``modelyard export`` in a process of its own: where TensorFlow ends that process, this one says so and cleans up.

Converters and other runtimes have one more, which that one starts: see :class:`modelyard.export.isolation.Worker`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from modelyard.artifact import locate
from modelyard.console import write_error
from modelyard.export.cli._cli import make_parser
from modelyard.export.isolation import ended_by, remove_staging

_CHILD = "import os, sys; sys.path.append(os.getcwd()); from modelyard.export import cli; sys.exit(cli.export_here())"
#: Signals that ask a process to end.
_STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def main(argv: Sequence[str]) -> int:
    """Exports in a child process."""
    arguments = make_parser().parse_args(argv)
    code, stage, number = _run(argv)
    if code >= 0:
        return code
    repository = Path(str(locate(arguments.repository)))
    for model_dir in repository.glob("*"):
        remove_staging(model_dir, number)
    cause = "stopped." if -code in _STOPS else ended_by(code, stage)
    write_error("export", f"{cause} Nothing was published.")
    return 128 - code


def _run(argv: Sequence[str]) -> tuple[int, str, int]:
    """The exit code of one child, the stage that it reached, and its number."""
    asked: list[int] = []
    children: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: object) -> None:
        asked.append(number)
        for child in children:
            child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _STOPS}
    try:
        with tempfile.TemporaryDirectory(prefix="modelyard-export-") as folder:
            told = Path(folder) / "stage"
            # -P: a file that lies here by chance must not stand in for a package.
            command = [sys.executable, "-P", "-c", _CHILD, *argv, f"--stage-file={told}"]
            # A group of its own: Ctrl-C on a terminal comes here, and goes on from here once. It ends with its input,
            # which belongs to this process alone.
            child = subprocess.Popen([*command, "--end-with-input"], process_group=0, stdin=subprocess.PIPE)
            children.append(child)
            if asked:
                child.send_signal(asked[-1])
            code = child.wait()
            if child.stdin is not None:
                child.stdin.close()
            return code, told.read_text("utf-8") if told.exists() else "start", child.pid
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
