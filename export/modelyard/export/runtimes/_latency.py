"""How fast each verified way to serve answers, on the exporting machine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, Latency
from modelyard.export.formats import Apart
from modelyard.export.isolation import Worker
from modelyard.export.publish import ExportEvent, ExportOptions, Progress, ignore_progress
from modelyard.export.runtimes._choice import FALLBACK
from modelyard.export.runtimes._runtimes import computed_of, renamed_of, usable_cores
from modelyard.export.runtimes._timing import TimedApart, TimedHere, Timing, load_here
from modelyard.export.sources import Reference, graph_signature
from modelyard.export.verification import Verification

#: With less time than this to measure in, no process is started: it takes about as long until it is there.
PROCESS_SECONDS = 5.0

_BATCH_SIZES = (1, 32)
# Every measurement is taken in turns with the others, so that none of them has the machine's bad moment to itself.
_ROUNDS = 4
# Numbers of threads are measured one after the other, so the best of all are measured once more, in turns.
_FINAL_SHARE = 0.25
_FINAL_ROUNDS = 8
_FINALISTS = 6
# What is slower than the best by more than this does not become the best in calmer moments.
_CLOSE = 1.5


@dataclass(kw_only=True)
class _Job:
    format: str
    precision: str
    runtime: str
    signature: str
    threads: int
    batch_size: int
    # Whether TensorFlow must have a process of its own for so many threads.
    apart: bool = False
    times: list[int] = field(default_factory=list)

    @property
    def place(self) -> tuple[str, str, str, int]:
        """What is loaded for it."""
        return (self.format, self.precision, self.runtime, self.threads)

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
    """The signature that decides on the runtime: the default, or the first where there is none."""
    names = list(names)
    return DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in names else names[0]


def thread_counts(cores: int) -> tuple[int, ...]:
    """Thread counts to measure: powers of two, and all cores."""
    return tuple(sorted({1 << power for power in range(cores.bit_length()) if 1 << power <= cores} | {cores}))


def measure_latency(
    reference: Reference,
    directory: Path,
    *,
    checks: Mapping[str, Verification],
    options: ExportOptions,
    progress: Progress = ignore_progress,
    apart: Apart | None = None,
) -> tuple[Latency, ...]:
    """Times every format and variant in every runtime that it was verified in.

    The main signature is timed at batch sizes 1 and 32 with 1, 2, 4, ... threads, the others at batch size 1 with one
    thread. TensorFlow keeps the number of threads that its process began with, so every other one has a process of its
    own, where there is time for that and no GPU, which this process has for itself. Each call gets other real examples;
    decode of encoded ones is part of it. What may turn out to be the fastest is timed once more in the end, in turns;
    those times count.
    """
    counts = thread_counts(usable_cores())
    own = tf.config.threading.get_intra_op_parallelism_threads() or usable_cores()
    if own not in counts:
        # As many as TensorFlow was told to have.
        counts = tuple(sorted({*counts, own}))
    others = options.measure_seconds >= PROCESS_SECONDS and not tf.config.list_logical_devices("GPU")
    groups = [_jobs(reference, checks, threads, own=own, apart=others) for threads in counts]
    bench = _Bench(reference=reference, directory=directory, apart=apart)
    clock = _Clock(jobs=sum(len(group) for group in groups), options=options, progress=progress)
    for index, group in enumerate(groups):
        clock.deadline = options.measure_seconds * (1 - _FINAL_SHARE) * (index + 1) / len(groups)
        _measure(bench, group, clock)
    main = main_signature(reference.source.signatures)
    _measure_again(bench, [job for group in groups for job in group if job.signature == main], clock)
    return tuple(job.result() for group in groups for job in group if job.times)


def _jobs(
    reference: Reference, checks: Mapping[str, Verification], threads: int, *, own: int, apart: bool
) -> list[_Job]:
    main = main_signature(reference.source.signatures)
    jobs = []
    for check in checks.values():
        for runtime in (check.served_by, *check.others):
            elsewhere = runtime == FALLBACK and threads != own
            if elsewhere and not apart:
                continue
            for name, signature in reference.source.signatures.items():
                if name != main and (elsewhere if runtime == FALLBACK else threads != 1):
                    continue
                fixed = any(spec.shape is not None and spec.shape[:1] != (-1,) for spec in signature.inputs)
                for size in _BATCH_SIZES if name == main and not fixed else (1,):
                    job = _Job(format=check.format, precision=check.precision, runtime=runtime, signature=name,
                               threads=threads, batch_size=size, apart=elsewhere)  # fmt: skip
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

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """What takes its time in here does not count."""
        began = time.monotonic()
        yield
        self.start += time.monotonic() - began

    @property
    def share(self) -> float:
        """Seconds of one round of one measurement."""
        return self.options.measure_seconds * (1 - _FINAL_SHARE) / self.jobs / _ROUNDS

    def tick(self, jobs: int = 1) -> None:
        self.done += jobs
        # One more for the last, which are measured again.
        self.progress(ExportEvent(stage="measure", done=self.done, total=self.jobs + 1))


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """Loads what is to be timed."""

    reference: Reference
    directory: Path
    apart: Apart | None

    @contextmanager
    def loaded(self, jobs: Sequence[_Job]) -> Iterator[dict[tuple[str, str, str, int], TimedHere | TimedApart]]:
        """What some measurements need, and no more of it than they need."""
        signatures, inputs = self.reference.source.signatures, self.reference.data.inputs
        wanted = {each for one in signatures.values() for each in (one.compute, one.preprocess) if each}
        found: dict[tuple[str, str, str, int], TimedHere | TimedApart] = {}
        with ExitStack() as stack:
            for job in jobs:
                if job.place in found:
                    continue
                source = self.reference.source
                timing = Timing(
                    directory=self.directory, format=job.format, precision=job.precision, runtime=job.runtime,
                    threads=job.threads, graphs=wanted, signatures=signatures,
                    described={graph: graph_signature(source, graph) for graph in source.graphs},
                    renamed=renamed_of(source, job.format), computed=computed_of(source, job.format),
                    inputs={job.signature: inputs[job.signature]} if job.apart else inputs,
                )  # fmt: skip
                own = job.apart
                if own or (self.apart is not None and job.runtime != FALLBACK):
                    worker = Worker(threads=job.threads) if own or self.apart is None else self.apart.worker()
                    timed = found[job.place] = TimedApart(worker, timing, own=own)
                    stack.callback(timed.close)
                else:
                    found[job.place] = load_here(timing)
            yield found


def _measure(bench: _Bench, jobs: Sequence[_Job], clock: _Clock) -> None:
    alone = {(*job.place, job.signature): job for job in jobs if job.batch_size == 1}
    with ExitStack() as stack:
        with clock.stopped():
            loaded = stack.enter_context(bench.loaded(jobs))
        for size in _BATCH_SIZES:
            running = [job for job in jobs if job.batch_size == size]
            for turn in range(_ROUNDS):
                for job in list(running):
                    one = alone[*job.place, job.signature]
                    if size > 1 and not clock.has(2 * size * one.median):
                        running.remove(job)
                        continue
                    timed = loaded[job.place]
                    if turn == 0:
                        _warm_up(timed, job, clock)
                    job.times += _round(timed, job, clock, rounds=_ROUNDS, seconds=clock.share)
            clock.tick(sum(job.batch_size == size for job in jobs))


def _measure_again(bench: _Bench, jobs: Sequence[_Job], clock: _Clock) -> None:
    """The fastest of all, and the fastest of TensorFlow, in turns: the numbers that decide and are compared."""
    single = sorted((job for job in jobs if job.batch_size == 1 and job.times), key=lambda job: job.median)
    others = [job for job in single if job.runtime != FALLBACK]
    finalists = [job for job in others[:_FINALISTS] if job.median <= _CLOSE * others[0].median]
    finalists += [job for job in single if job.runtime == FALLBACK][:1]
    if len(finalists) > 1:
        seconds = clock.options.measure_seconds * _FINAL_SHARE / len(finalists) / _FINAL_ROUNDS
        for job in finalists:
            job.times = []
        with bench.loaded(finalists) as loaded:
            for job in finalists:
                _warm_up(loaded[job.place], job, clock)
            for turn in range(_FINAL_ROUNDS):
                # Forwards and backwards: none always follows the same one.
                for job in finalists if turn % 2 else reversed(finalists):
                    job.times += _round(loaded[job.place], job, clock, rounds=_FINAL_ROUNDS, seconds=seconds)
    clock.tick()


def _warm_up(timed: TimedHere | TimedApart, job: _Job, clock: _Clock) -> None:
    calls = clock.options.latency_calls // 10
    timed.time(job.signature, batch_size=job.batch_size, first=0, calls=calls, seconds=clock.share / 4)


def _round(timed: TimedHere | TimedApart, job: _Job, clock: _Clock, *, rounds: int, seconds: float) -> list[int]:
    """One round of a measurement: at least one call, at most its share of calls and of time."""
    calls = clock.options.latency_calls // rounds
    return timed.time(job.signature, batch_size=job.batch_size, first=len(job.times), calls=calls, seconds=seconds)
