"""A shadow: computes requests once more on another version, behind the callers' backs."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from modelyard.errors import ModelyardError
from modelyard.serving.repository import ModelManager
from modelyard.serving.requests import Arrays, ModelSpec, size_of
from modelyard.serving.rollout._compare import Comparison, compare

_LOG = logging.getLogger("modelyard.serving")

#: Requests of a model that may wait for their shadow, and the bytes of all models' inputs and outputs that wait.
_MAX_WAITING = 64
_MAX_BYTES = 64 << 20
#: Longest wait at a stop for what is computed: no caller waits for it.
_STOP_S = 3.0


@dataclass(frozen=True, kw_only=True)
class ShadowJob:
    """A request that was answered."""

    spec: ModelSpec
    answered: int
    inputs: Arrays
    outputs: Arrays
    tolerance: float
    #: Takes what came of it: None where the shadow failed.
    report: Callable[[Comparison | None], None]

    @property
    def size(self) -> int:
        return size_of(self.inputs) + size_of(self.outputs)


class Shadow:
    """Computes on one thread of its own: whatever a shadow takes, requests get the other processors.

    Models take turns, so that a slow shadow delays no other model's. What comes while too much waits is dropped.
    """

    def __init__(self, manager: ModelManager) -> None:
        self._manager = manager
        self._condition = threading.Condition()
        #: By model, the one whose turn it is first; a model without jobs is not in it.
        self._jobs: dict[str, deque[ShadowJob]] = {}
        self._bytes = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, job: ShadowJob) -> bool:
        """Takes a request, and returns at once."""
        with self._condition:
            waiting = len(self._jobs.get(job.spec.name, ()))
            if self._closed or waiting >= _MAX_WAITING or self._bytes + job.size > _MAX_BYTES:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="modelyard-shadow", daemon=True)
                self._thread.start()
            self._jobs.setdefault(job.spec.name, deque()).append(job)
            self._bytes += job.size
            self._condition.notify()
            return True

    def close(self) -> None:
        """Drops what waits, and waits for what is computed, for a few seconds."""
        with self._condition:
            self._closed = True
            self._jobs.clear()
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._jobs or self._closed)
                if self._closed:
                    return
                name = next(iter(self._jobs))
                waiting = self._jobs.pop(name)
                job = waiting.popleft()
                if waiting:
                    self._jobs[name] = waiting
                self._bytes -= job.size
            try:
                self._compute(job)
            # The thread must survive errors of a version: its end would not be seen.
            except Exception:
                _LOG.exception("model %s: a shadow failed unexpectedly", job.spec.name)
                job.report(None)

    def _compute(self, job: ShadowJob) -> None:
        try:
            with self._manager.acquire(job.spec) as servable:
                signature = servable.signature(job.spec.signature_name)
                if servable.version == job.answered or signature.stateful:
                    # There is nothing to compare, or a state that only its own requests may advance.
                    return
                outputs = servable.run(signature, job.inputs, tuple(job.outputs))
                comparison = compare(job.outputs, outputs, tolerance=job.tolerance)
        except ModelyardError as exc:
            _LOG.debug("model %s: the shadow cannot compute a request: %s", job.spec.name, exc.message)
            job.report(None)
            return
        job.report(comparison)
