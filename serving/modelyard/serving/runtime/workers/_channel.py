"""Questions and answers between the supervisor and a worker: lines of JSON on a pair of sockets.

Both sides may ask at any time; an answer carries the number of its question.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from modelyard.errors import InternalError, ModelyardError, UnavailableError
from modelyard.serving.runtime.workers._errors import error_from_json, error_to_json

_LOG = logging.getLogger("modelyard.serving")
#: Longest line in bytes: a configuration, or all counters of a worker.
_LONGEST_LINE = 64 << 20

#: Answers a question, by its name and what came with it, with something that JSON can hold.
Answerer = Callable[[str, Any], Awaitable[Any]]


class Channel:
    """One end of the pair.

    Args:
        answer: Answers the questions of the other side.
    """

    def __init__(self, answer: Answerer) -> None:
        self._answer = answer
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, end: socket.socket) -> None:
        """Takes the socket: questions can be asked from now on, and are answered by :meth:`run`.

        Args:
            end: This side's.
        """
        self._reader, self._writer = await asyncio.open_unix_connection(sock=end, limit=_LONGEST_LINE)

    async def run(self) -> None:
        """Serves until the other side closes its end; questions that it owes an answer fail then."""
        try:
            while self._reader is not None and (line := await self._reader.readline()):
                message = json.loads(line)
                if "ask" in message:
                    task = asyncio.create_task(self._reply(message))
                    self._running.add(task)
                    task.add_done_callback(self._running.discard)
                else:
                    self._take(message)
        except ConnectionError:
            # As good as the end of the stream: the other process is gone.
            _LOG.debug("a control channel was cut")
        finally:
            if self._writer is not None:
                self._writer.close()
            self._writer = None
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(UnavailableError("The process at the other end of the control channel ended."))

    async def ask(self, name: str, value: Any = None) -> Any:
        """Asks the other side.

        Args:
            name: Of the question.
            value: What goes with it.

        Returns:
            The answer.

        Raises:
            ModelyardError: The other side's error.
            UnavailableError: It ended before it answered.
        """
        if self._writer is None:
            raise UnavailableError("The process at the other end of the control channel is not there.")
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send({"number": number, "ask": name, "value": value})
            return await future
        finally:
            del self._waiting[number]

    def _take(self, message: dict[str, Any]) -> None:
        future = self._waiting.get(message["number"])
        # Whoever asked may have gone meanwhile.
        if future is None or future.done():
            return
        if "error" in message:
            future.set_exception(error_from_json(message["error"]))
        else:
            future.set_result(message["value"])

    async def _reply(self, message: dict[str, Any]) -> None:
        number = message["number"]
        try:
            value = await self._answer(message["ask"], message["value"])
        except ModelyardError as exc:
            self._send({"number": number, "error": error_to_json(exc)})
        # The other side waits for an answer, whatever went wrong here.
        except Exception as exc:
            _LOG.exception("the question %r could not be answered", message["ask"])
            self._send({"number": number, "error": error_to_json(InternalError(f"{type(exc).__name__}: {exc}"))})
        else:
            self._send({"number": number, "value": value})

    def _send(self, message: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write(json.dumps(message).encode() + b"\n")
