"""How fast each verified way to serve answers, on the exporting machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from modelyard.artifact import DEFAULT_SIGNATURE, Latency
from modelyard.export._options import ExportEvent, ExportOptions, Progress, ignore_progress
from modelyard.export._reference import Reference
from modelyard.export._runtimes import Arrays, Runtime, call_signature, load_runtime
from modelyard.export._verification import Verification

_BATCH_SIZES = (1, 32)
# Every measurement is taken in turns with the others, so that none of them has the machine's bad moment to itself.
_ROUNDS = 4


@dataclass(kw_only=True)
class _Job:
    format: str
    precision: str
    runtime: str
    signature: str
    threads: int
    batch_size: int
    times: list[int] = field(default_factory=list)

    @property
    def median(self) -> float:
        return float(np.median(self.times)) / 1e9

    def result(self) -> Latency:
        return Latency(
            format=self.format,
            precision=self.precision,
            runtime=self.runtime,
            signature=self.signature,
            batch_size=self.batch_size,
            threads=self.threads,
            p50_us=float(np.median(self.times)) / 1e3,
            examples_per_s=self.batch_size * len(self.times) / (sum(self.times) / 1e9),
        )


def main_signature(names: Iterable[str]) -> str:
    """The signature that decides on the runtime: the default, or the first where there is none.

    Args:
        names: All signatures.
    """
    names = list(names)
    return DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in names else names[0]


def thread_counts(cores: int) -> tuple[int, ...]:
    """Thread counts to measure: powers of two, and all cores.

    Args:
        cores: Of this machine.
    """
    return tuple(sorted({1 << power for power in range(cores.bit_length()) if 1 << power <= cores} | {cores}))


def measure_latency(
    reference: Reference,
    directory: Path,
    *,
    checks: Mapping[str, Verification],
    options: ExportOptions,
    progress: Progress = ignore_progress,
) -> tuple[Latency, ...]:
    """Times every format and variant in every runtime that it was verified in.

    The main signature is timed at batch sizes 1 and 32 with 1, 2, 4, ... threads,
    the others at batch size 1 with one thread. TensorFlow has the threads that
    the process gave it, which cannot be changed. Each call gets other real
    examples; decode of encoded ones is part of it.

    Args:
        reference: Brings signatures and examples.
        directory: The version directory.
        checks: What was verified.
        options: Number of calls, and the time for all.
        progress: Called after every batch size of a number of threads.

    Returns:
        The measurements; larger batches that did not fit into the time are left out.

    Raises:
        VerificationError: A runtime failed.
    """
    counts = thread_counts(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    groups = [_jobs(reference, checks, threads, last=threads == counts[-1]) for threads in counts]
    clock = _Clock(jobs=sum(len(group) for group in groups), options=options, progress=progress)
    for index, group in enumerate(groups):
        clock.deadline = options.measure_seconds * (index + 1) / len(groups)
        _measure(reference, directory, group, clock)
    return tuple(job.result() for group in groups for job in group if job.times)


def _jobs(reference: Reference, checks: Mapping[str, Verification], threads: int, *, last: bool) -> list[_Job]:
    main = main_signature(reference.source.signatures)
    jobs = []
    for check in checks.values():
        for runtime in (check.served_by, *check.others):
            # TensorFlow has all cores, whatever is said.
            if runtime == "tensorflow" and not last:
                continue
            for name, signature in reference.source.signatures.items():
                if name != main and threads != 1 and runtime != "tensorflow":
                    continue
                fixed = any(spec.shape is not None and spec.shape[:1] != (-1,) for spec in signature.inputs)
                for size in _BATCH_SIZES if name == main and not fixed else (1,):
                    job = _Job(format=check.format, precision=check.precision, runtime=runtime, signature=name,
                               threads=threads, batch_size=size)  # fmt: skip
                    jobs.append(job)
    return jobs


@dataclass(kw_only=True)
class _Clock:
    """The time that is left, and progress."""

    jobs: int
    options: ExportOptions
    progress: Progress
    deadline: float = 0.0
    start: float = field(default_factory=time.monotonic)
    done: int = 0

    def has(self, seconds: float) -> bool:
        return time.monotonic() - self.start + seconds <= self.deadline

    @property
    def share(self) -> float:
        """Seconds of one round of one measurement."""
        return self.options.measure_seconds / self.jobs / _ROUNDS

    def tick(self, jobs: int = 1) -> None:
        self.done += jobs
        self.progress(ExportEvent(stage="measure", done=self.done, total=self.jobs))


def _measure(reference: Reference, directory: Path, jobs: Sequence[_Job], clock: _Clock) -> None:
    runtimes: dict[tuple[str, str, str], Runtime] = {}
    signatures = reference.source.signatures
    wanted = {each for signature in signatures.values() for each in (signature.compute, signature.preprocess) if each}
    for job in jobs:
        key = (job.format, job.precision, job.runtime)
        if key not in runtimes:
            runtimes[key] = load_runtime(
                job.format, directory, precision=job.precision, runtime=job.runtime, threads=job.threads, graphs=wanted
            )
        # TensorFlow says itself how many it has.
        job.threads = runtimes[key].threads
    alone = {(job.format, job.precision, job.runtime, job.signature): job for job in jobs if job.batch_size == 1}
    for size in _BATCH_SIZES:
        running = [job for job in jobs if job.batch_size == size]
        for turn in range(_ROUNDS):
            for job in list(running):
                one = alone[job.format, job.precision, job.runtime, job.signature]
                if size > 1 and not clock.has(2 * size * one.median):
                    running.remove(job)
                    continue
                runtime = runtimes[job.format, job.precision, job.runtime]
                _run(reference, runtime, job, warm_up=turn == 0, clock=clock)
        clock.tick(sum(job.batch_size == size for job in jobs))


def _run(reference: Reference, runtime: Runtime, job: _Job, *, warm_up: bool, clock: _Clock) -> None:
    """One round of a measurement: at least one call, at most its share of calls and of time."""
    inputs = reference.data.inputs[job.signature]
    signature = reference.source.signatures[job.signature]
    count = len(next(iter(inputs.values())))
    calls = max(1, clock.options.latency_calls // _ROUNDS)
    if warm_up:
        end = time.monotonic() + clock.share / 4
        for index in range(max(1, calls * _ROUNDS // 10)):
            call_signature(runtime, job.signature, signature, _rows(inputs, index, job.batch_size, count))
            if time.monotonic() > end:
                break
    end = time.monotonic() + clock.share
    for _ in range(calls):
        example = _rows(inputs, len(job.times), job.batch_size, count)
        start = time.perf_counter_ns()
        call_signature(runtime, job.signature, signature, example)
        job.times.append(time.perf_counter_ns() - start)
        if time.monotonic() > end:
            break


def _rows(inputs: Arrays, index: int, size: int, count: int) -> Arrays:
    rows = np.arange(index * size, (index + 1) * size) % count
    return {key: values[rows] for key, values in inputs.items()}
