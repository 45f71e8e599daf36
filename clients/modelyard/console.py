"""What the processes of the command line have in common: progress, and what libraries may say on the standard error."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from modelyard.errors import ConfigurationError, ModelyardError
from modelyard.lazy import needs_extra

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
#: What TensorFlow's libraries say of themselves and of the machine, before it can be told what to say; whatever else
#: comes meanwhile passes.
_BANNER = (
    r"WARNING: All log messages before absl::InitializeLog"
    r"|[IW]\d{4} \d\d:\d\d:\d+\.\d+ .*\.cc:\d+\]"
    r"|E\d{4} \d\d:\d\d:\d+\.\d+ .*\.cc:\d+\] (?:failed call to cuInit|Unable to register cu)"
    r"|To enable the following instructions:"
)
#: The variable that says what TensorFlow tells: 0 for everything.
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_VERBOSE = "--verbose"
_PATIENCE_S = 2.0
_SECONDS_BETWEEN_LINES = 15.0
#: Passes on the lines that do not begin with a pattern.
_FILTER = """
import re, sys
pattern = re.compile(sys.argv[1].encode())
for line in sys.stdin.buffer:
    if not pattern.match(line):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""


def printable(text: str, *, keep: str = "") -> str:
    """A text whose other characters are escapes: names come from models and servers, and a terminal obeys some."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in text
    )


def make_command(prog: str, description: str, examples: str, *, allow_abbrev: bool = True) -> argparse.ArgumentParser:
    """A parser whose examples are shown as they are written."""
    return argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=allow_abbrev,
    )


def write_error(command: str, message: str) -> None:
    """Says on the standard error why a command fails; names in it, and its lines, may be a model's or a server's."""
    sys.stderr.write(f"modelyard {command}: {printable(message, keep=chr(10))}\n")


def run_command(command: str, work: Callable[[], int | None], *, stopped: str = "interrupted") -> int:
    """The exit code of a command's work: 2 for a wrong usage, 1 for another error, 130 after Ctrl-C; says why."""
    try:
        return work() or 0
    except ModelyardError as exc:
        write_error(command, exc.message)
        return EXIT_USAGE if isinstance(exc, ConfigurationError) else EXIT_ERROR
    except KeyboardInterrupt:
        write_error(command, stopped)
        return EXIT_INTERRUPTED


def take_verbose(arguments: Sequence[str]) -> list[str]:
    """Takes ``--verbose`` out of a command line: where it is given, this process and its children show everything."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if _VERBOSE in arguments[:end]:
        os.environ[_LOG_LEVEL] = "0"
    return [*(each for each in arguments[:end] if each != _VERBOSE), *arguments[end:]]


def quiet_libraries() -> None:
    """Switches TensorFlow's banners off, unless ``TF_CPP_MIN_LOG_LEVEL`` is 0 or 1, to which ``--verbose`` sets it.

    OpenVINO reports nothing to its makers, whatever the variable says.

    For a process's own ``main``, before TensorFlow is imported. Only its libraries know how to be quiet, once they
    are loaded: what they say until then is taken out of the standard error while they are imported; not in process 1
    of a container, whose last words would be lost.
    """
    # OpenVINO does without the package that reports its use to its makers, from a fork of the process that imports it.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None says that there is none
    quiet = os.environ.setdefault(_LOG_LEVEL, "2") not in ("0", "1")
    # Process 1 of a container ends all others with it: none is left to report why.
    if os.getpid() == 1:
        return
    if quiet and "tensorflow" not in sys.modules and not any(isinstance(each, _QuietImport) for each in sys.meta_path):
        sys.meta_path.insert(0, _QuietImport())


@contextlib.contextmanager
def leave_out_keras() -> Iterator[None]:
    """TensorFlow is imported without Keras inside: in half the processor time, and in 150 MB less.

    TensorFlow imports Keras at once, and Keras imports scikit-learn, pandas and matplotlib where they are installed.
    For processes that compute saved graphs. A later import of Keras works.
    """
    # Where one of them is there or on its way, there is nothing to save.
    left_out = not {"tensorflow", "keras"} & set(sys.modules)
    if left_out:
        sys.modules["keras.src"] = None  # type: ignore[assignment]  # None says that there is none
    try:
        yield
    finally:
        if left_out:
            sys.modules.pop("keras.src", None)


class _QuietImport(importlib.abc.MetaPathFinder):
    """Imports TensorFlow without its banners, and without looking for garbage all the time."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Takes TensorFlow from where it is, and wraps what executes it."""
        if fullname != "tensorflow":
            return None
        # A program that only asks whether it is installed gets here, too.
        others = (each for each in sys.meta_path if each is not self)
        spec = next((found for each in others if (found := each.find_spec(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with _without_banners(), _without_collections():
                    execute(module)
                    # The drivers that are looked for at first use have their say, too.
                    module.config.list_physical_devices()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Has Python look for garbage once, afterwards: it looks 660 times while it imports TensorFlow and finds little."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _without_banners() -> Iterator[None]:
    """Has another process read the standard error, and pass on what is no banner.

    A thread would end with this process, and a library's last words with it where the library ends the process.
    """
    try:
        sys.stderr.flush()
        shown = os.dup(2)
    except (OSError, AttributeError):
        # A daemon may have closed it.
        yield
        return
    # In a session of its own: Ctrl-C is not for it.
    reader = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _FILTER, _BANNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=shown,
        start_new_session=True,
    )
    if reader.stdin is not None:
        os.dup2(reader.stdin.fileno(), 2)
        reader.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(shown, 2)
        os.close(shown)
        try:
            reader.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            # A process that was started meanwhile may hold the pipe for as long as it runs.
            threading.Thread(target=reader.wait, name="modelyard-stderr", daemon=True).start()


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What an event means to people who wait."""

    #: To print, whatever else is shown.
    lines: tuple[str, ...] = ()
    #: Name of a bar; events with the same one move it. Empty for no bar.
    stage: str = ""
    #: What stands before the bar.
    label: str = ""
    #: Units finished.
    done: int = 0
    #: Units of the stage.
    total: int = 0
    #: What stands behind the bar.
    note: str = ""
    #: The line that takes a new bar's place where there is no terminal; empty for none.
    announce: str = ""
    #: Whether the bars shall go.
    ended: bool = False


class Showable(Protocol):
    """An event of a training run or of an export."""

    def shown(self) -> Shown:
        """What to show of it."""


class ProgressBar:
    """Shows how far a run or an export is: give it to them as an action, or as ``progress``.

    On a terminal there are bars; elsewhere lines only, and of the same stage at most one in fifteen seconds. As a
    context manager it puts its bars away at the end, also where no event says that this was the last one.

    Args:
        stream: Where to; None is standard error.
    """

    def __init__(self, *, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._bars: Progress | None = None
        self._stages: dict[str, TaskID] = {}
        self._last_line = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def __call__(self, event: Showable, /) -> None:
        """Shows one event.

        Args:
            event: Of a training run or of an export.
        """
        shown = event.shown()
        if shown.ended:
            self._stop()
        for line in shown.lines:
            self._line(line)
        if shown.stage:
            self._move(shown)

    def _move(self, shown: Shown) -> None:
        bars = self._started()
        new = shown.stage not in self._stages
        # It may hold a name of a model's.
        label = printable(shown.label)
        if new:
            self._stages[shown.stage] = bars.add_task(label, total=shown.total, note="")
        note = f"  {shown.note}" if shown.note else ""
        task = self._stages[shown.stage]
        bars.update(task, completed=shown.done, total=shown.total, description=label, note=note)
        if bars.console.is_terminal:
            return
        if new:
            self._last_line = time.monotonic()
            if shown.announce:
                self._line(shown.announce)
        elif time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._line(f"{shown.label}  step {shown.done:,}/{shown.total:,}{note}")

    def _started(self) -> Progress:
        if self._bars is None:
            with needs_extra("training", "rich", purpose="ProgressBar"):
                from rich.console import Console
                from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
            # Not before: who catches the standard error does so later than this object is made.
            console = Console(file=self._stream or sys.stderr)
            columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
            self._bars = Progress(
                *columns,
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(elapsed_when_finished=True),
                console=console,
                disable=not console.is_terminal,
            )
            self._bars.start()
        return self._bars

    def _stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
        self._bars, self._stages = None, {}

    def _line(self, text: str) -> None:
        self._last_line = time.monotonic()
        self._started().console.print(printable(text, keep="\n"), markup=False, highlight=False, soft_wrap=True)
