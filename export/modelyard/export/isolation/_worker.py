"""Another Python process that does what it is told: started clean, never forked, gone with the one that started it."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from modelyard.artifact import STAGING_PREFIX, Location, RemotePath
from modelyard.errors import ExportError, InternalError, ModelyardError
from modelyard.export.formats import LOG_VARIABLE
from modelyard.export.publish import ExportEvent, Progress


@dataclass(frozen=True)
class Kept:
    """The number of something that a worker keeps for later orders."""

    number: int


@dataclass(frozen=True, kw_only=True)
class Order:
    """A call: of something that can be imported, or of a method of ``arguments[0]`` by name."""

    function: Any
    arguments: tuple[Any, ...]
    keep: bool = False
    progress: bool = False


@dataclass(frozen=True)
class Forget:
    """Something that is kept no longer."""

    kept: Kept


@dataclass(frozen=True)
class Event:
    """Progress or a log record: not yet the answer."""

    value: Any


@dataclass(frozen=True)
class Done:
    """The result of a call."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """The error that a call has raised: its class where it is one of ours, its message, the traceback of its cause."""

    kind: type[ModelyardError] | None
    message: str
    cause: str


def ended_by(number: int, stage: str) -> str:
    """A sentence on why a process ended in the middle of its work."""
    if number >= 0:
        return f"The process ended with exit code {number} in the stage {stage!r}."
    killed = -number == signal.SIGKILL
    what = "The process was killed, most likely for want of memory" if killed else "A library ended the process"
    return f"{what} ({signal.Signals(-number).name}) in the stage {stage!r}."


def remove_staging(model_dir: Location, number: int) -> None:
    """Removes what a process that has ended had begun in a model's folder; its number is part of the name."""
    if isinstance(model_dir, RemotePath):
        return
    for folder in model_dir.glob(f"{STAGING_PREFIX}{number}-*"):
        shutil.rmtree(folder)


_MODULE = "modelyard.export.isolation._serve"


class WorkerEndedError(ExportError):
    """A worker ended before it had answered. What its libraries said last is the cause."""


class _SaidError(Exception):
    """What was said in a worker, for a log file."""

    def __init__(self, text: str) -> None:
        super().__init__(f"in a process of its own:\n{text}")


class Worker:
    """A process with TensorFlow and without a GPU: those belong to the process that trains.

    It loads its libraries while this process goes on, so it is best made some
    time before it is needed.
    """

    def __init__(self, *, threads: int = 0, modules: Sequence[str] = ()) -> None:
        # Its standard error, read here when it has ended.
        self._log = tempfile.TemporaryFile()
        self._folder = tempfile.TemporaryDirectory(prefix="modelyard-export-")
        self._process = subprocess.Popen(
            # -P: a file in the working directory must not shadow a package. faulthandler from the first moment on, and
            # no buffer: what is printed before a library aborts the process, while it still imports too, is in the log.
            [
                *(sys.executable, "-P", "-u", "-X", "faulthandler", "-m", _MODULE),
                *(self._folder.name, str(threads), *modules),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "CUDA_VISIBLE_DEVICES": "-1",
                "TMPDIR": self._folder.name,
                LOG_VARIABLE: "1",
            },
            # Ctrl-C is for this process, which ends that one.
            start_new_session=True,
        )
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise InternalError("A worker has pipes. This is a bug.")
        self._orders = Connection(os.dup(stdin.fileno()), readable=False)
        self._answers = Connection(os.dup(stdout.fileno()), writable=False)

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def folder(self) -> Path:
        """For temporary files of both processes; it goes with that one, also where this one is killed."""
        return Path(self._folder.name)

    @property
    def alive(self) -> bool:
        """Whether it can be called."""
        return self._process.poll() is None

    def call(
        self, function: Callable[..., Any] | str, *arguments: Any, stage: str, progress: Progress | None = None
    ) -> Any:
        """Calls a function over there."""
        order = Order(function=function, arguments=arguments, progress=progress is not None)
        return self._answer(order, stage, progress)

    def keep(self, function: Callable[..., Any], *arguments: Any, stage: str) -> Kept:
        """Calls a function, as :meth:`call` does, and keeps what it returns over there."""
        kept: Kept = self._answer(Order(function=function, arguments=arguments, keep=True), stage, None)
        return kept

    def forget(self, kept: Kept, *, stage: str) -> None:
        """Lets go of something that is kept."""
        self._answer(Forget(kept), stage, None)

    def close(self) -> None:
        """Ends the process, and removes what it left in the folder for temporary files."""
        self._process.kill()
        self._orders.close()
        self._answers.close()
        # It may have died with an order on its way to it, which is needed no more.
        with contextlib.suppress(BrokenPipeError), self._process:
            pass
        self._log.close()
        self._folder.cleanup()

    def _answer(self, order: Order | Forget, stage: str, progress: Progress | None) -> Any:
        # Its answer says why the pipe is broken.
        with contextlib.suppress(BrokenPipeError):
            self._orders.send(order)
        while True:
            try:
                answer = self._answers.recv()
            # The latter where it ended within an answer.
            except (EOFError, OSError):
                raise WorkerEndedError(ended_by(self._process.wait(), stage)) from self._said()
            if isinstance(answer, Done):
                return answer.value
            if isinstance(answer, Failed):
                raise _error(answer) from (_SaidError(answer.cause) if answer.cause else None)
            if isinstance(answer.value, ExportEvent):
                stage = answer.value.stage
            self._pass_on(answer, progress)

    def _said(self) -> _SaidError:
        self._log.seek(0)
        return _SaidError(self._log.read().decode("utf-8", "replace"))

    @staticmethod
    def _pass_on(event: Event, progress: Progress | None) -> None:
        if isinstance(event.value, logging.LogRecord):
            logging.getLogger(event.value.name).handle(event.value)
        elif isinstance(event.value, ExportEvent) and progress is not None:
            progress(event.value)


def _error(failed: Failed) -> ModelyardError:
    if failed.kind is None:
        return InternalError(f"{failed.message} This is a bug.")
    # Some classes make their message of other arguments.
    error = failed.kind.__new__(failed.kind)
    ModelyardError.__init__(error, failed.message)
    return error
