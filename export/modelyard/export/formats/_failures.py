"""What converters say when they fail: one sentence of it for people, all of it for a log file."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_LONGEST = 300
#: By format, how its converter says that it does not know an operator.
_UNKNOWN = {
    "ONNX": r"No Op registered for (?P<operator>\w+) with domain_version",
    "TFLite": r"'tf\.(?P<operator>\w+)' op is neither a custom op nor a flex op",
}
_STDERR = 2
#: Set where the standard error of this process is a log that another one reads.
LOG_VARIABLE = "MODELYARD_EXPORT_LOG"


def gist(error: BaseException) -> str:
    """The first thing that an error says, without the places in a compiler's graph."""
    # OpenVINO begins with places in its own code, and ends with what it means.
    text = re.sub(r"(?s)^.*\nSummary:\n-- ", "", str(error))
    for name, pattern in _UNKNOWN.items():
        if missing := re.search(pattern, text):
            operator = missing["operator"]
            places = re.findall(rf'"{operator}:", "(\S+?)@', text) + re.findall(
                rf"Name: (\S+) OpType: {operator}\b", text
            )
            place = f" ({places[0].removeprefix('PartitionedCall/')})" if places else ""
            return f"the operator {operator}{place} has no counterpart in {name}"
    lines = (line.strip() for line in text.splitlines())
    # TensorFlow, with the places in the user's code and its own.
    skipped = r"Graph execution error:|Detected at node |File \"|<stack traces unavailable>"
    said = (line for line in lines if line and not re.match(skipped, line))
    first = next(said, type(error).__name__)
    first = re.sub(r"^.*?\berror: ", "", first)
    first = re.sub(r"^loc\(.*\): |^\{\{.*?\}\} ", "", first).removesuffix(".")
    return first if len(first) <= _LONGEST else f"{first[:_LONGEST]} ..."


def keep_log(error: BaseException, name: str) -> Path | None:
    """Writes what a converter said to a file that stays."""
    if error.__cause__ is None:
        return None
    try:
        descriptor, path = tempfile.mkstemp(prefix=f"modelyard-export-{name}-", suffix=".log")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.writelines(traceback.format_exception(error.__cause__))
    except OSError:
        # The error itself is what has to be told, on a full disk, too.
        return None
    return Path(path)


def say_logs(logs: Iterable[Path | None]) -> str:
    """The end of a sentence that says where everything is."""
    paths = " and ".join(str(each) for each in logs if each is not None)
    return f" What the libraries said: {paths}" if paths else ""


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """Keeps what a compiler in C++ writes to standard error from the screen; an error takes it along, as a note."""
    sys.stderr.flush()
    if LOG_VARIABLE in os.environ:
        # What it says before it ends the process has to be there afterwards.
        begin = os.lseek(_STDERR, 0, os.SEEK_END)
        try:
            yield
        except Exception as exc:
            end = os.lseek(_STDERR, 0, os.SEEK_END)
            exc.add_note(os.pread(_STDERR, end - begin, begin).decode("utf-8", "replace"))
            raise
        return
    with tempfile.TemporaryFile() as file:
        try:
            screen = os.dup(_STDERR)
        except OSError:
            # A process without standard error: nothing is shown anyway.
            yield
            return
        os.dup2(file.fileno(), _STDERR)
        try:
            yield
        except Exception as exc:
            file.seek(0)
            exc.add_note(file.read().decode("utf-8", "replace"))
            raise
        finally:
            sys.stderr.flush()
            os.dup2(screen, _STDERR)
            os.close(screen)
