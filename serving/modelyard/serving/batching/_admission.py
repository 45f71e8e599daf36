"""Admission: what waits for one model, how long it will take, and whether one more may wait."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from modelyard.errors import ModelyardError, OverloadedError, UnavailableError
from modelyard.serving.requests import Caller

if TYPE_CHECKING:
    from modelyard.serving.batching._queue import BatchQueue

#: Weight of the newest batch in the running means: some five batches after a change they have followed it, so that a
#: rush for a model that takes as long for 60 rows as for one is answered in batches of 60 after a few of one.
NEWEST = 0.2
#: One pause of the machine must not shut a model for long: what took so many times as long as expected counts as this.
OUTLIER = 4.0
#: A refused caller is told when to try again: in whole steps of the first, so that answers to
#: callers that are refused together are alike, and not later than the second.
RETRY_S = (0.05, 10.0)
#: Threads that wait for more requests or for a slot take memory only; queues of one model are rarely more at a time.
_WAITING_THREADS = 64


class Cost:
    """Running means of the seconds that work took, and of its size: rows of a batch, or bytes of a body.

    The guess for other sizes is the ratio of the two means, so that the sum over a queue is right even where
    small work costs more for its size than large work.
    """

    __slots__ = ("_size", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._size = 0.0

    def of(self, size: int) -> float:
        """Seconds that work of a size takes; 0 until some was done."""
        return self.seconds * (size / self._size if size and self._size else 1.0)

    def learn(self, seconds: float, size: int) -> None:
        """Follows what work takes."""
        usual = max(self.of(size), self.seconds)
        self.seconds += NEWEST * (min(seconds, OUTLIER * usual) - self.seconds) if usual else seconds
        if size:
            self._size += NEWEST * (size - self._size) if self._size else size


class ModelThreads:
    """The threads of one model, and what waits for them; no other model waits for what this one does."""

    def __init__(
        self,
        *,
        threads: int,
        workers: int,
        max_waiting: int = 0,
        max_delay_s: float = 0.0,
        refused: Callable[[str], None] | None = None,
    ) -> None:
        self.refused = refused or (lambda _: None)
        self.threads = threads
        self._max_waiting = max_waiting
        self._max_delay_s = max_delay_s or math.inf
        #: Guards what waits, here and in the queues of the model.
        self.condition = threading.Condition()
        self._backlog_s = 0.0
        self.waiting = 0
        #: Nothing is begun any more.
        self.closed = False
        #: A thread that computes holds one.
        self.slots = threading.Semaphore(threads)
        #: By thread, the queue whose batch it computes.
        self.computing: dict[int, BatchQueue] = {}
        self.batches = ThreadPoolExecutor(_WAITING_THREADS, thread_name_prefix="modelyard-batch")
        #: Large bodies, images and messages are decoded here, and what is no prediction is answered.
        self.work = ThreadPoolExecutor(_WAITING_THREADS, thread_name_prefix="modelyard-work")
        #: A thread that does so holds one.
        self.work_slots = threading.Semaphore(workers)
        self.work_cost = Cost()

    def enter(self, caller: Caller | None, cost: float, *, least: float = 0.0) -> None:
        """Lets a request in.

        A large one enters for its body to be decoded, and again to be computed. Only the first time it may be one too
        many: or else what was done for it would be lost to requests that have not begun.

        ``least`` is what it takes in any case: a batch takes what it takes, however many share it.
        """
        with self.condition:
            expected = max(least, (self._backlog_s + cost) / self.threads)
            let_in = caller is not None and caller.let_in
            if self._max_waiting and self.waiting >= self._max_waiting and not let_in:
                self.refused("queue_full")
                raise _overloaded(
                    f"The server is overloaded: {self.waiting} requests wait, the most that "
                    "--max_queued_requests allows. Try again in a moment.",
                    expected,
                )
            limit = self._max_delay_s
            if caller is not None and caller.deadline is not None:
                limit = min(limit, caller.deadline - time.monotonic())
            # An idle model takes any request: or else a wrong estimate would never be corrected.
            if expected > limit and self.waiting:
                self.refused("too_late")
                raise _overloaded(
                    f"The server is overloaded: an answer would take about {expected:.2f} s, longer than the "
                    f"{max(0.0, limit):.2f} s there are. Try again in a moment.",
                    expected - limit,
                )
            if caller is not None:
                caller.let_in = True
            self.waiting += 1
            self._backlog_s += cost

    def leave(self, cost: float) -> None:
        """A request was computed, or given up."""
        with self.condition:
            self.waiting -= 1
            # Rounding must not leave a ghost of a backlog behind.
            self._backlog_s = self._backlog_s - cost if self.waiting else 0.0

    def refusal(self, caller: Caller | None) -> ModelyardError | None:
        """Why a request should not be computed any more; None where it should."""
        if self.closed:
            return UnavailableError("The server is stopping; ask another one.")
        return None if caller is None else caller.refusal()

    def close(self) -> None:
        """Drops what has not begun, and waits for what has."""
        with self.condition:
            self.closed = True
            self.condition.notify_all()
        self.work.shutdown(wait=True)
        self.batches.shutdown(wait=True)


def _overloaded(text: str, seconds: float) -> OverloadedError:
    error = OverloadedError(text)
    step, most = RETRY_S
    error.retry_after_s = min(most, max(1, math.ceil(seconds / step)) * step)
    return error
