"""The blocking machinery: does what the engine says, on the caller's thread."""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from typing import Protocol as Interface

from modelyard.clients.protocols import Answer, Flow, Pause
from modelyard.clients.transport import Engine, Race, Send, Steps
from modelyard.errors import ModelyardError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_T = TypeVar("_T")
_HEDGERS = 32


class Transport(Interface):
    """Carries bytes to one server and back."""

    def send(self, send: Send[Any]) -> Answer:
        """Sends one request and waits for its answer."""

    def close(self) -> None:
        """Frees the connections."""


class Runner:
    """Performs operations, and watches the servers where there are several.

    Args:
        engine: The rules, and the servers.
    """

    def __init__(self, engine: Engine[Transport]) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._hedgers: ThreadPoolExecutor | None = None
        self._watcher: threading.Thread | None = None
        self._stop = threading.Event()

    @property
    def url(self) -> str:
        """Normal form of the server's URL; of several, with commas."""
        return self._engine.url

    def close(self) -> None:
        """Closes the connections; a second call does nothing."""
        self._engine.closed = True
        self._stop.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()
        if self._hedgers is not None:
            self._hedgers.shutdown(wait=False, cancel_futures=True)
        for transport in self._engine.pool.all_transports:
            transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}{', closed' if self._engine.closed else ''})"

    def _run(self, flow: Flow[_T], timeout_s: float | None, model: str) -> _T:
        if self._watcher is None and self._engine.pool.watched:
            self._watch()
        return self._perform(self._engine.run(flow, timeout_s, model))

    def _perform(self, steps: Steps[Transport, _T]) -> _T:
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, Send):
                        answer = step.endpoint.transport.send(step)
                    elif isinstance(step, Pause):
                        time.sleep(step.seconds)
                        answer = Answer(b"")
                    else:
                        answer = self._race(step)
                except ModelyardError as exc:
                    step = steps.throw(exc)
                else:
                    step = steps.send(answer)
        except StopIteration as stop:
            result: _T = stop.value
            return result
        finally:
            steps.close()

    def _race(self, race: Race[Transport]) -> Answer:
        from concurrent import futures

        with self._lock:
            if self._hedgers is None:
                self._hedgers = futures.ThreadPoolExecutor(_HEDGERS, thread_name_prefix="modelyard-hedge")
        running = {self._hedgers.submit(race.first.endpoint.transport.send, race.first)}
        done, running = futures.wait(running, timeout=race.delay_s)
        if not done:
            running.add(self._hedgers.submit(race.second.endpoint.transport.send, race.second))
            done, running = futures.wait(running, return_when=futures.FIRST_COMPLETED)
            if running and all(item.exception() is not None for item in done):
                # One failed: the other one may still answer.
                more, running = futures.wait(running)
                done |= more
        return next((item for item in done if item.exception() is None), next(iter(done))).result()

    def _watch(self) -> None:
        with self._lock:
            if self._watcher is None and not self._stop.is_set():
                self._watcher = threading.Thread(target=self._probe_forever, name="modelyard-health", daemon=True)
                self._watcher.start()

    def _probe_forever(self) -> None:
        from concurrent import futures

        pool, options = self._engine.pool, self._engine.options.balance
        with futures.ThreadPoolExecutor(8, thread_name_prefix="modelyard-probe") as workers:
            while not self._stop.wait(options.probe_interval_s):
                # A name that cannot be resolved now keeps its addresses; the calls say what is wrong.
                with contextlib.suppress(ModelyardError):
                    pool.refresh()
                futures.wait(
                    [workers.submit(self._perform, self._engine.probe(endpoint)) for endpoint in pool.endpoints]
                )
