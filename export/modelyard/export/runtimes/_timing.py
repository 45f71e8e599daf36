"""Times of calls: of a runtime in this process, or in another one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modelyard.artifact import Signature
from modelyard.errors import VerificationError
from modelyard.export.isolation import Worker, WorkerEndedError
from modelyard.export.runtimes._runtimes import Arrays, Runtime, adapt, call_signature, load_runtime


class TimedHere:
    """A runtime in this process."""

    def __init__(self, runtime: Runtime, signatures: Mapping[str, Signature], inputs: Mapping[str, Arrays]) -> None:
        self._runtime = runtime
        self._signatures = signatures
        self._inputs = inputs

    def time(self, signature: str, *, batch_size: int, first: int, calls: int, seconds: float) -> list[int]:
        """Nanoseconds of each of some calls, the decode of encoded inputs among them."""
        inputs = self._inputs[signature]
        count = len(next(iter(inputs.values())))
        times: list[int] = []
        end = time.monotonic() + seconds
        for number in range(first, first + max(1, calls)):
            rows = np.arange(number * batch_size, (number + 1) * batch_size) % count
            example = {key: values[rows] for key, values in inputs.items()}
            start = time.perf_counter_ns()
            call_signature(self._runtime, signature, self._signatures[signature], example)
            times.append(time.perf_counter_ns() - start)
            if time.monotonic() > end:
                break
        return times


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What is loaded to be timed; it can be sent to another process."""

    directory: Path
    format: str
    precision: str
    runtime: str
    threads: int
    graphs: Iterable[str]
    signatures: Mapping[str, Signature]
    described: Mapping[str, Signature]
    renamed: Mapping[str, Mapping[str, str]]
    computed: Mapping[str, str]
    inputs: Mapping[str, Arrays]


def load_here(timing: Timing) -> TimedHere:
    """Loads a runtime in this process."""
    runtime = load_runtime(
        timing.format, timing.directory, precision=timing.precision, runtime=timing.runtime, threads=timing.threads,
        graphs=timing.graphs,
    )  # fmt: skip
    runtime = adapt(runtime, timing.described, timing.renamed, timing.computed)
    return TimedHere(runtime, timing.signatures, timing.inputs)


class RuntimeEndedError(VerificationError):
    """A runtime ended the process in which it was timed."""

    def __init__(self, message: str, timing: Timing) -> None:
        super().__init__(message)
        self.timing = timing


class TimedApart:
    """A runtime in another process."""

    def __init__(self, worker: Worker, timing: Timing, *, own: bool = False) -> None:
        self._worker = worker
        self._own = own
        count = "1 thread" if timing.threads == 1 else f"{timing.threads} threads"
        self._stage = f"measure {timing.runtime} with {count}"
        self._timing = timing
        try:
            self._kept = worker.keep(load_here, timing, stage=self._stage)
        except BaseException as exc:
            if own:
                worker.close()
            if isinstance(exc, WorkerEndedError):
                raise self._error(exc) from exc.__cause__
            raise

    def time(self, signature: str, *, batch_size: int, first: int, calls: int, seconds: float) -> list[int]:
        """As :meth:`TimedHere.time`, over there."""
        options = {"batch_size": batch_size, "first": first, "calls": calls, "seconds": seconds}
        try:
            times: list[int] = self._worker.call(_time, self._kept, signature, options, stage=self._stage)
        except WorkerEndedError as exc:
            raise self._error(exc) from exc.__cause__
        return times

    def close(self) -> None:
        """Unloads it, and ends a process that was for this alone."""
        if self._own:
            self._worker.close()
        elif self._worker.alive:
            self._worker.forget(self._kept, stage=self._stage)

    def _error(self, exc: WorkerEndedError) -> RuntimeEndedError:
        return RuntimeEndedError(f"Format {self._timing.format}: {exc.message}", self._timing)


def _time(timed: TimedHere, signature: str, options: Mapping[str, Any]) -> list[int]:
    return timed.time(signature, **options)
