"""The watchdog: a version whose batch does not end is taken out of service, and comes back when it ends."""

from __future__ import annotations

import logging
import threading
import time

from modelyard.serving.metrics import Metrics
from modelyard.serving.repository import ModelManager
from modelyard.serving.servables import Computing, Servable

_LOG = logging.getLogger("modelyard.serving")
_HANGING = ":modelyard:serving:hanging_batches"
#: Seconds between two looks: the first at most, and never less than the second.
_TICK_S, _SHORTEST_S = 1.0, 0.05


class Watchdog:
    """Looks at all batches that are computed; a thread of its own, since the event loop may be what waits.

    The requests of a batch that is over the limit are answered with an error, its version is suspended, its call is
    interrupted where the runtime can (onnxruntime) and left to its thread where not, and the version is resumed when no
    batch of it is over the limit any more.
    """

    def __init__(self, manager: ModelManager, metrics: Metrics, limit_s: float) -> None:
        self._manager = manager
        self._metrics = metrics
        self._limit_s = limit_s
        self._tick_s = max(_SHORTEST_S, min(_TICK_S, limit_s / 4))
        #: Seconds that were seen of each batch: computing, thread and beginning name it.
        self._ages: dict[tuple[Computing, int, float], float] = {}
        self._hanging: dict[Computing, set[tuple[int, float]]] = {}
        self._looked = time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="modelyard-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def _watch(self) -> None:
        while not self._stopping.wait(self._tick_s):
            try:
                self._look()
            # If this thread ended, nothing would show it.
            except Exception:
                _LOG.exception("the watchdog failed unexpectedly; it goes on")

    def _look(self) -> None:
        now = time.monotonic()
        # A machine that stood still, or a process that was stopped, has computed nothing meanwhile.
        passed, self._looked = min(now - self._looked, 2 * self._tick_s), now
        ages: dict[tuple[Computing, int, float], float] = {}
        for servable in self._manager.loaded():
            computing = servable.compute
            if not isinstance(computing, Computing):
                continue
            for thread, begun in computing.begun.items():
                key = (computing, thread, begun)
                ages[key] = self._ages[key] + passed if key in self._ages else min(now - begun, passed)
            over = {key[1:] for key, age in ages.items() if key[0] is computing and age >= self._limit_s}
            if over or computing in self._hanging:
                self._judge(servable, computing, over)
        self._ages = ages

    def _judge(self, servable: Servable, computing: Computing, over: set[tuple[int, float]]) -> None:
        before = self._hanging.get(computing, set())
        name, version = servable.name, servable.version
        if over:
            self._hanging[computing] = over
        else:
            self._hanging.pop(computing, None)
        if not before:
            labels = {"model": name, "version": str(version)}
            self._metrics.watch(_HANGING, labels, lambda: len(self._hanging.get(computing, ())))
        if new := over - before:
            text = (
                f"version {version} has been computing a batch for more than {self._limit_s:g} s "
                "(--max_batch_seconds); it gets no requests until that ends"
            )
            _LOG.error("model %s: %s", name, text)
            threads = [thread for thread, _ in new]
            self._manager.suspend(servable, f"{text[0].upper()}{text[1:]}.", threads=threads, limit_s=self._limit_s)
            servable.backend.interrupt(threads)
        elif before and not over:
            _LOG.warning("model %s version %d: its batch has ended; it gets requests again", name, version)
            self._manager.resume(servable)
