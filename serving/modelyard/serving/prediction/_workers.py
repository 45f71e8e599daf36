"""The threads of each model, and work on them that is no batch."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import TypeVar

from modelyard.errors import ModelyardError
from modelyard.serving.batching import ModelThreads
from modelyard.serving.metrics import Metrics
from modelyard.serving.requests import Caller, current_caller, once

_T = TypeVar("_T")


class Workers:
    """Makes the threads of each model when it is first called, and runs work on them."""

    def __init__(self, new_threads: Callable[..., ModelThreads], metrics: Metrics) -> None:
        self._new_threads = new_threads
        self._metrics = metrics
        #: By model; what has none, such as the metrics page, is under the empty name, which no model has.
        self._threads: dict[str, ModelThreads] = {}
        self._lock = threading.Lock()
        #: By thread, what is called where the work that it does for a caller is given up; who takes it out ends it.
        self._working: dict[int, Callable[[ModelyardError], None]] = {}

    @property
    def waiting(self) -> int:
        return sum(threads.waiting for threads in list(self._threads.values()))

    def has(self, model: str) -> bool:
        return model in self._threads

    def of(self, model: str) -> ModelThreads:
        with self._lock:
            threads = self._threads.get(model)
            if threads is None:
                refused = partial(self._metrics.refuse, model=model)
                threads = self._threads[model] = self._new_threads(refused=refused)
            return threads

    def forget(self, model: str) -> None:
        """Ends the threads of a model that nobody can call any more."""
        with self._lock:
            threads = self._threads.pop(model, None)
        if threads is not None:
            threads.close()

    def run(
        self,
        threads: ModelThreads,
        caller: Caller | None,
        size: int,
        work: Callable[[], _T],
        given_up: Callable[[ModelyardError], None] = lambda _: None,
    ) -> Future[_T]:
        """Runs work on a thread of a model, if it is let in; ``size`` is its bytes, 0 where that is not known.

        ``given_up`` is called with the reason where the work is not waited for any more, though it has not ended.
        """
        cost = threads.work_cost.of(size)
        threads.enter(caller, cost)
        leave = once(partial(threads.leave, cost))

        def end_early(error: ModelyardError) -> None:
            leave()
            # Another thread of the model takes its place.
            threads.work_slots.release()
            given_up(error)

        def run() -> _T:
            with threads.work_slots:
                if refusal := threads.refusal(caller):
                    raise refusal
                current_caller.set(caller)
                started = time.perf_counter()
                self._working[threading.get_ident()] = end_early
                ok = False
                try:
                    result = work()
                    ok = True
                    return result
                finally:
                    seconds = time.perf_counter() - started
                    if self._working.pop(threading.get_ident(), None) is None:
                        threads.work_slots.acquire()
                    # What fails early says nothing of what the others cost.
                    elif ok or seconds > cost:
                        threads.work_cost.learn(seconds, size)

        try:
            future = threads.work.submit(run)
        # There is no thread for it.
        except RuntimeError:
            leave()
            raise
        # Also where it was given up before it began.
        future.add_done_callback(lambda _: leave())
        return future

    async def offload(self, work: Callable[[], _T], caller: Caller | None, model: str) -> _T:
        """Runs work and returns its result, or raises why it is not waited for any more."""
        threads = self.of(model)
        if caller is None:
            return await asyncio.get_running_loop().run_in_executor(threads.work, work)
        answer: Future[_T] = Future()

        def given_up(error: ModelyardError) -> None:
            settle(answer, None, error)
            if caller.given_up is not None:
                caller.given_up(error)

        future = self.run(threads, caller, 0, work, given_up)
        future.add_done_callback(partial(_settle_ended, answer))
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            caller.leave()
            future.cancel()
            raise

    def give_up(self, threads: Sequence[int], error: ModelyardError, refusal: ModelyardError) -> None:
        """Answers who waits for what some threads compute for too long, in queues that no plan keeps, too."""
        for each in list(self._threads.values()):
            for thread in threads:
                queue = each.computing.get(thread)
                if queue is not None:
                    queue.give_up(threads, error, refusal)
        for thread in threads:
            end_early = self._working.pop(thread, None)
            if end_early is not None:
                end_early(error)

    def close(self) -> None:
        for threads in list(self._threads.values()):
            threads.close()


def settle(future: asyncio.Future[_T] | Future[_T], result: _T | None, error: BaseException | None) -> None:
    """Sets a future's result or error, unless it has one: of two who know an answer, the first counts."""
    with contextlib.suppress(InvalidStateError, asyncio.InvalidStateError):
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]  # without an error there is a result
        else:
            future.set_exception(_bare(error))


def _settle_ended(answer: Future[_T], work: Future[_T]) -> None:
    if work.cancelled():
        answer.cancel()
        return
    error = work.exception()
    settle(answer, None if error is not None else work.result(), error)


def _bare(error: BaseException) -> BaseException:
    """An error of ours, whose message says everything, without the frames that hold its caller's objects.

    Each refusal would be a cycle of some fifty objects otherwise, and a server
    that refuses much would stand still for the garbage collector.
    """
    return error.with_traceback(None) if isinstance(error, ModelyardError) else error
