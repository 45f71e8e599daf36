"""``modelyard export`` in a process of its own: where native code ends that process, this one says so and cleans up.

Converters and runtimes are C++ libraries, and some inputs end the process instead of raising an error.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from modelyard.artifact import STAGING_PREFIX, locate
from modelyard.export._cli import make_parser
from modelyard.export._options import FORMATS

_CHILD = "import os, sys; sys.path.append(os.getcwd()); from modelyard.export._cli import main; sys.exit(main())"
_STAGE = re.compile(rf"(?:convert|verify) ({'|'.join(FORMATS)})\b")
#: By which somebody asks for the end.
_STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def main(argv: Sequence[str]) -> int:
    """Exports in a child process, once more without an optional format that ended it.

    Args:
        argv: Arguments without the program's name.

    Returns:
        The exit code of the export; 128 and the signal's number where one ended it.
    """
    arguments = make_parser().parse_args(argv)
    left_out: dict[str, str] = {}
    while True:
        code, stage, number = _run([*argv, *(f"--leave-out={name}={why}" for name, why in left_out.items())])
        if code >= 0:
            return code
        _remove_staging(Path(str(locate(arguments.repository))), number)
        if -code in _STOPS:
            sys.stderr.write("modelyard export: stopped. Nothing was published.\n")
            return 128 - code
        found = _STAGE.match(stage)
        failed = found.group(1) if found else ""
        cause = _cause(-code, stage)
        if failed not in arguments.optional or failed in left_out:
            way = f" To publish without it: --optional {failed}." if failed else ""
            sys.stderr.write(f"modelyard export: {cause} Nothing was published.{way}\n")
            return 128 - code
        sys.stderr.write(f"modelyard export: {cause} Going on without {failed}.\n")
        left_out[failed] = cause


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
            # which is nobody's but this process's.
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


def _cause(number: int, stage: str) -> str:
    killed = number == signal.SIGKILL
    what = "The process was killed, most likely for want of memory" if killed else "A library ended the process"
    return f"{what} ({signal.Signals(number).name}) in the stage {stage!r}."


def _remove_staging(repository: Path, number: int) -> None:
    """Removes what the child that died had begun; its number is part of the name."""
    for folder in repository.glob(f"*/{STAGING_PREFIX}{number}-*"):
        shutil.rmtree(folder)
