"""Several processes on one port: they are started, kept alive, changed together, and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from modelyard.errors import ConfigurationError, ModelyardError, ServerError, UnavailableError
from modelyard.serving.metrics import Snapshot, merged
from modelyard.serving.runtime.workers._channel import Channel
from modelyard.serving.transports import reserve

_LOG = logging.getLogger("modelyard.serving")
#: Seconds before another worker follows one that never listened: longer each time, up to the longest wait.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 10.0


@dataclass(kw_only=True, eq=False)
class _Worker:
    index: int
    process: asyncio.subprocess.Process
    joined: bool = False
    loaded: bool = False
    ready: bool = False
    seen: Snapshot = field(default_factory=dict)
    channel: Channel = field(init=False)


class Supervisor:
    """Runs workers until it is told to stop, and starts another one for each that dies.

    The workers listen on the same ports (``SO_REUSEPORT``, ``socket(7)``): the
    kernel chooses one for each connection. The supervisor itself serves nothing
    and loads nothing.

    Args:
        arguments: The server's own, for each worker.
        count: How many workers.
        ports: TCP ports that they listen on.
    """

    def __init__(self, arguments: Sequence[str], *, count: int, ports: Sequence[int]) -> None:
        self._arguments = [*arguments]
        self._count = count
        self._ports = ports
        self._workers: dict[int, _Worker] = {}
        self._changes: list[Any] = []
        self._changing = asyncio.Lock()
        self._dead: Snapshot = {}
        self._stop = asyncio.Event()
        self._code = 0
        self._announced = False
        #: All of the first workers have tried their models.
        self._together = asyncio.Event()

    async def run(self) -> int:
        """Serves until SIGTERM or SIGINT.

        Returns:
            The exit code: 0 after a clean stop, that of a worker that could not start otherwise.

        Raises:
            ConfigurationError: A port is in use.
        """
        with contextlib.ExitStack() as held:
            for port in self._ports:
                try:
                    held.enter_context(reserve(port))
                except OSError as exc:
                    raise ConfigurationError(
                        f"Port {port} cannot be listened on: {exc.strerror}. Is it in use?"
                    ) from exc
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, partial(self._on_signal, number))
            await asyncio.gather(*(self._keep(index) for index in range(self._count)))
        _LOG.info("all workers ended")
        return self._code

    def _on_signal(self, number: signal.Signals) -> None:
        again = self._stop.is_set()
        _LOG.info("received %s%s", number.name, " again: ending at once" if again else "")
        self._end(signal.SIGKILL if again else signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        self._stop.set()
        for worker in self._workers.values():
            with contextlib.suppress(ProcessLookupError):
                worker.process.send_signal(number)

    async def _keep(self, index: int) -> None:
        wait_s = 0.0
        while not self._stop.is_set():
            if wait_s:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), wait_s)
                    return
            worker, code = await self._live(index)
            if self._stop.is_set():
                # One that was just starting had nothing to finish yet.
                self._code = self._code or (0 if code == -signal.SIGTERM else _exit_code(code))
                return
            if not worker.ready and not self._announced:
                # The first workers of all: what they cannot do, others cannot do either.
                _LOG.error("worker %d could not start; stopping", index)
                self._code = _exit_code(code) or 1
                self._end(signal.SIGTERM)
                return
            wait_s = 0.0 if worker.ready else min(_LONGEST_WAIT_S, max(_FIRST_WAIT_S, 2 * wait_s))
            _LOG.error("worker %d ended with %d; another one starts in %.1f s", index, code, wait_s)

    async def _live(self, index: int) -> tuple[_Worker, int]:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "modelyard.serving.runtime.workers",
                str(theirs.fileno()), str(index), *self._arguments,
                pass_fds=[theirs.fileno()],
                # Ctrl-C reaches a whole group: here the supervisor passes it on, once.
                process_group=0,
            )  # fmt: skip
        worker = self._workers[index] = _Worker(index=index, process=process)
        worker.channel = Channel(partial(self._answer, worker))
        if self._stop.is_set():
            process.send_signal(signal.SIGTERM)
        await worker.channel.open(ours)
        listening = asyncio.create_task(worker.channel.run())
        code = await process.wait()
        await listening
        del self._workers[index]
        self._dead = merged([self._dead, worker.seen], gauges=False)
        return worker, code

    async def _answer(self, worker: _Worker, name: str, value: Any) -> Any:
        if name == "begin":
            # From here on it is told of every change; those before are in the answer.
            async with self._changing:
                worker.joined = True
                return {"changes": self._changes, "others": self._announced}
        if name == "loaded":
            worker.loaded = True
            if len(self._workers) == self._count and all(each.loaded for each in self._workers.values()):
                self._together.set()
            await self._together.wait()
            return None
        if name == "ready":
            worker.ready = True
            if not self._announced and all(each.ready for each in self._workers.values()):
                self._announced = True
                _LOG.info("all %d workers listen", len(self._workers))
            return None
        if name == "report":
            worker.seen = value
            return None
        if name == "snapshots":
            worker.seen = value
            return [self._dead, *await self._snapshots(worker)]
        return await self._change(value)

    async def _snapshots(self, asker: _Worker) -> list[Snapshot]:
        others = [each for each in self._workers.values() if each is not asker]
        await asyncio.gather(*(self._look(each) for each in others))
        return [each.seen for each in others]

    async def _look(self, worker: _Worker) -> None:
        # One that dies just now, or is not up yet, is counted by its last report.
        with contextlib.suppress(UnavailableError):
            worker.seen = await worker.channel.ask("snapshot")

    async def _change(self, change: Any) -> None:
        async with self._changing:
            workers = [each for each in self._workers.values() if each.joined]
            results = await asyncio.gather(*(self._tell(each, change) for each in workers))
            errors = [(each.index, result) for each, result in zip(workers, results, strict=True) if result is not None]
            # A ServerError says that the change is in force and something is wrong with it; others, that it is not.
            if len(errors) < len(workers) or any(isinstance(error, ServerError) for _, error in errors):
                self._changes = [each for each in self._changes if each["about"] != change["about"]] + [change]
        if errors:
            index, error = errors[0]
            everywhere = len(errors) == len(workers)
            raise error if everywhere else type(error)(f"Worker {index} of {len(workers)}: {error.message}")

    async def _tell(self, worker: _Worker, change: Any) -> ModelyardError | None:
        try:
            await worker.channel.ask("change", change)
        except UnavailableError:
            # It died: who comes after it begins with this change.
            return None
        except ModelyardError as exc:
            return exc
        return None


def _exit_code(code: int) -> int:
    # As a shell has it for a process that a signal ended.
    return code if code >= 0 else 128 - code
