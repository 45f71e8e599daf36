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


def main(argv: Sequence[str]) -> int:
    """Exports in a child process, once more without an optional format that ended it.

    Args:
        argv: Arguments without the program's name.

    Returns:
        The exit code of the export; 128 and the signal's number where one ended it.
    """
    arguments = make_parser().parse_args(argv)
    left_out: list[str] = []
    while True:
        code, stage, number = _run([*argv, *(f"--leave-out={each}" for each in left_out)])
        if code >= 0:
            return code
        _remove_staging(Path(str(locate(arguments.repository))), number)
        found = _STAGE.match(stage)
        failed = found.group(1) if found else ""
        optional = failed in arguments.optional and failed not in left_out
        sys.stderr.write(f"modelyard export: {_sentence(-code, stage, failed, optional=optional)}\n")
        if not optional:
            return 128 - code
        left_out.append(failed)


def _run(argv: Sequence[str]) -> tuple[int, str, int]:
    """The exit code of one child, the stage that it reached, and its number."""
    with tempfile.TemporaryDirectory(prefix="modelyard-export-") as folder:
        told = Path(folder) / "stage"
        # -P: a file that lies here by chance must not stand in for a package.
        command = [sys.executable, "-P", "-c", _CHILD, *argv, f"--stage-file={told}"]
        # A group of its own: Ctrl-C on a terminal comes here, and goes on from here once.
        process = subprocess.Popen(command, process_group=0)

        def forward(number: int, _: object) -> None:
            process.send_signal(number)

        before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            code = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return code, told.read_text("utf-8") if told.exists() else "start", process.pid


def _sentence(number: int, stage: str, failed: str, *, optional: bool) -> str:
    name = signal.Signals(number).name
    if number == signal.SIGTERM:
        return "stopped. Nothing was published."
    killed = number == signal.SIGKILL
    cause = "the process was killed, most likely for want of memory" if killed else "a library ended the process"
    way = f" To publish without it: --optional {failed}." if failed else ""
    rest = f"Going on without {failed}." if optional else f"Nothing was published.{way}"
    return f"{cause} ({name}) in the stage {stage!r}. {rest}"


def _remove_staging(repository: Path, number: int) -> None:
    """Removes what the child that died had begun; its number is part of the name."""
    for folder in repository.glob(f"*/{STAGING_PREFIX}{number}-*"):
        shutil.rmtree(folder)
