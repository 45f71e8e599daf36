"""Another Python process that does what it is told: started clean, never forked, gone with the one that started it."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from modelyard.errors import ExportError, InternalError, ModelyardError
from modelyard.export.formats import LOG_VARIABLE
from modelyard.export.isolation._causes import ended_by
from modelyard.export.isolation._messages import Done, Event, Failed, Forget, Kept, Order
from modelyard.export.publish import ExportEvent, Progress

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

    Args:
        threads: Threads of TensorFlow; 0 for its default.
        modules: Are imported before the first order comes.
    """

    def __init__(self, *, threads: int = 0, modules: Sequence[str] = ()) -> None:
        # Its standard error, read here when it has ended.
        self._log = tempfile.TemporaryFile()
        self._folder = tempfile.TemporaryDirectory(prefix="modelyard-export-")
        self._process = subprocess.Popen(
            # -P: a file that lies here by chance must not stand in for a package.
            [sys.executable, "-P", "-m", _MODULE, str(threads), *modules],
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
        """Calls a function over there.

        Args:
            function: It can be imported; or the name of a method of the first argument, which is kept there.
            arguments: ``multiprocessing`` can send them, or they are kept there.
            stage: What it is, for an error, as long as there is no progress.
            progress: Given to the function as ``progress=``, called here.

        Returns:
            What the function returns.

        Raises:
            ModelyardError: The function raised it; behind it is the text of what was behind it there.
            InternalError: It raised something else: this is a bug.
            WorkerEndedError: The process ended.
        """
        order = Order(function=function, arguments=arguments, progress=progress is not None)
        return self._answer(order, stage, progress)

    def keep(self, function: Callable[..., Any], *arguments: Any, stage: str) -> Kept:
        """Calls a function, as :meth:`call` does, and keeps what it returns over there.

        Args:
            function: It can be imported.
            arguments: As of :meth:`call`.
            stage: What it is, for an error.

        Raises:
            ModelyardError: As :meth:`call`.
        """
        kept: Kept = self._answer(Order(function=function, arguments=arguments, keep=True), stage, None)
        return kept

    def forget(self, kept: Kept, *, stage: str) -> None:
        """Lets go of something that is kept.

        Args:
            kept: From :meth:`keep`.
            stage: What it is, for an error.

        Raises:
            WorkerEndedError: The process ended.
        """
        self._answer(Forget(kept), stage, None)

    def close(self) -> None:
        """Ends the process, and removes what it left in the folder for temporary files."""
        self._process.kill()
        self._orders.close()
        self._answers.close()
        # It may have died with an order on its way to it, which nobody needs any more.
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
