"""What the blocking client does with time and threads."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING
from typing import Protocol as Interface

from modelyard.clients.api._many import BatchSteps, ManyOptions, Progress, Row, RowResult, batch_steps, batches
from modelyard.clients.protocols import Answer, Pause
from modelyard.clients.transport import Endpoint, Pool, Race, Send
from modelyard.clients.values import Prediction
from modelyard.errors import DeadlineExceededError, ModelyardError, RequestCancelledError

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor
    from queue import SimpleQueue

Call = Callable[[Row], Prediction]
_PROBERS = 8


class Transport(Interface):
    """Carries bytes to one server and back."""

    def send(self, send: Send[object]) -> Answer:
        """Sends one request and waits for its answer."""

    def close(self) -> None:
        """Frees the connections."""


class Runner:
    """Pauses, hedged calls and health checks, on threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._stop = threading.Event()

    def check_loop(self) -> None:
        """Threads have none."""

    def pause(self, pause: Pause) -> None:
        if pause.until is None:
            time.sleep(pause.seconds)
            return
        over = threading.Event()
        pause.until.then(over.set)
        over.wait(pause.seconds)

    def race(self, race: Race[Transport]) -> Answer:
        """The first answer of two calls; the loser runs out."""
        import queue

        deadline = time.monotonic() + race.first.timeout_s
        outcomes: SimpleQueue[Answer | BaseException] = queue.SimpleQueue()
        _start(race.first, outcomes)
        with contextlib.suppress(queue.Empty):
            return _result(outcomes.get(timeout=race.delay_s))
        hedged = not self._stop.is_set() and race.allowed()
        if hedged:
            _start(race.second, outcomes)
        try:
            outcome = outcomes.get(timeout=max(0.0, deadline - time.monotonic()))
            if hedged and isinstance(outcome, BaseException):
                # One failed: the other one may still answer.
                outcome = outcomes.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            url = race.first.endpoint.address.url
            raise DeadlineExceededError(f"{url}: no complete answer in time.") from None
        try:
            return _result(outcome)
        finally:
            # An error that keeps this frame would be kept by it, and both by nothing but the garbage collector.
            del outcome

    def watch(self, pool: Pool[Transport], interval_s: float, probe: Callable[[Endpoint[Transport]], object]) -> None:
        """Starts the health checks of a pool, once in each process: a fork leaves its threads behind."""
        if self._watching():
            return
        # Not on the thread: a fork in the middle of an import leaves a part of the module to the child.
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            if not self._watching() and not self._stop.is_set():
                workers = ThreadPoolExecutor(_PROBERS, thread_name_prefix="modelyard-probe")
                arguments = (pool, interval_s, probe, workers)
                self._watcher = threading.Thread(
                    target=self._probe_forever, args=arguments, name="modelyard-health", daemon=True
                )
                self._watcher.start()

    def _watching(self) -> bool:
        return self._watcher is not None and self._watcher.is_alive()

    def close(self) -> None:
        self._stop.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()

    def _probe_forever(
        self,
        pool: Pool[Transport],
        interval_s: float,
        probe: Callable[[Endpoint[Transport]], object],
        workers: ThreadPoolExecutor,
    ) -> None:
        from concurrent import futures

        with workers:
            while not self._stop.wait(interval_s):
                # A name that cannot be resolved now keeps its addresses; the calls say what is wrong.
                with contextlib.suppress(ModelyardError):
                    pool.refresh()
                futures.wait([workers.submit(probe, endpoint) for endpoint in pool.endpoints])


def _start(send: Send[Transport], outcomes: SimpleQueue[Answer | BaseException]) -> None:
    """Sends on a thread of its own: one that waited for its turn would begin too late, and not at all after a fork."""

    def run(outcomes: SimpleQueue[Answer | BaseException]) -> None:
        try:
            outcomes.put(send.endpoint.transport.send(send))
        except BaseException as exc:
            outcomes.put(exc)
        finally:
            # As above: the error of a call that lost stays there.
            del outcomes

    threading.Thread(target=run, args=(outcomes,), name="modelyard-hedge", daemon=True).start()


def _result(outcome: Answer | BaseException) -> Answer:
    try:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome
    finally:
        del outcome


def run_many(
    drive: Callable[[BatchSteps, Call], list[RowResult]], call: Call, rows: Iterable[Row], options: ManyOptions
) -> Iterator[RowResult]:
    """Predicts rows on threads; the rows are read on the thread that iterates over the results."""
    from concurrent import futures

    stop = threading.Event()

    def unless_stopped(inputs: Row) -> Prediction:
        if stop.is_set():
            raise RequestCancelledError("The results are not iterated over any more.")
        return call(inputs)

    counter = Progress(options)
    pending: deque[Future[list[RowResult]]] = deque()
    # In order, a slow batch keeps finished ones waiting: so many more may be under way that no thread idles.
    window = options.concurrency * (2 if options.ordered else 1)
    with futures.ThreadPoolExecutor(options.concurrency, thread_name_prefix="modelyard-many") as workers:
        try:
            try:
                for batch in batches(rows, options):
                    pending.append(workers.submit(drive, batch_steps(batch), unless_stopped))
                    if len(pending) >= window:
                        yield from counter.count(_next(pending, options))
            except Exception:
                # Where the rows end in an error, the answers to those before it are not lost.
                while pending:
                    yield from counter.count(_next(pending, options))
                raise
            while pending:
                yield from counter.count(_next(pending, options))
        finally:
            stop.set()
            for item in pending:
                item.cancel()


def _next(pending: deque[Future[list[RowResult]]], options: ManyOptions) -> list[RowResult]:
    from concurrent import futures

    if options.ordered:
        return pending.popleft().result()
    done = next(futures.as_completed(pending))
    pending.remove(done)
    return done.result()
