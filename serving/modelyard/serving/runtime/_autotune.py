"""``modelyard serve --autotune``: measures threads, instances and batch size for a latency limit.

The result is a file of flags for ``--flagfile``, with all measurements as comments.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from modelyard.artifact import DEFAULT_SIGNATURE, drafted
from modelyard.errors import ConfigurationError, InvalidRequestError
from modelyard.serving.batching import probe, shared_graphs
from modelyard.serving.config import ServerOptions
from modelyard.serving.machine import available_cpus
from modelyard.serving.servables import Servable, load_servable

#: Length of one measurement in seconds, and the least number of batches in it.
_SECONDS, _LEAST = 0.4, 5
#: Most rows of a batch; larger ones are rarely faster.
_MOST_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A measured configuration: the throughput of all instances, and the 99th percentile of a batch's seconds."""

    threads: int
    instances: int
    rows: int
    examples_per_s: float
    batch_s: float

    @property
    def latency_s(self) -> float:
        """Longest time of a request, in seconds: it may come just after a batch began, and then takes one itself."""
        return 2 * self.batch_s


def autotune(options: ServerOptions) -> None:
    """Measures the newest version of the model, and writes the flags that serve the most within the limit."""
    file, latency_s = Path(options.autotune_file), options.autotune_latency_s
    name, version, path = _newest(options)
    # Nobody should have to learn that after minutes of measuring.
    with _written(file), tempfile.TemporaryFile(dir=file.parent):
        pass
    sys.stderr.write(_HEAD + "\n")
    trials: list[Trial] = []
    runtime = ""
    for threads, instances in shapes(available_cpus()):
        load = replace(options.load, threads=threads, interpreters=instances)
        servable = load_servable(name, version, path, load)
        runtime = servable.backend.name
        try:
            for trial in _rows(servable, threads, instances, latency_s):
                trials.append(trial)
                sys.stderr.write(_line(trial, latency_s) + "\n")
        finally:
            servable.close()
    best = choose(trials, latency_s)
    heading = (
        f"# Written by modelyard serve --autotune={file.name} for model {name}, version {version} ({runtime}),\n"
        f"# on {platform.machine()} with {available_cpus()} CPUs, for answers within {latency_s * 1e3:g} ms.\n"
        "# A request may wait for one batch and then takes another: twice a batch's p99 counts.\n#\n"
    )
    table = "".join(f"# {line}\n" for line in (_HEAD, *(_line(trial, latency_s, best) for trial in trials)))
    flags = [
        f"--tensorflow_intra_op_parallelism={best.threads}",
        f"--tensorflow_session_parallelism={best.instances}",
        f"--num_tflite_pools={best.instances}",
        f"--max_batch_rows={best.rows}",
    ]
    with _written(file), drafted(file) as draft:
        draft.write_text(heading + table + "\n".join(flags) + "\n", "utf-8")
    sys.stderr.write(f"Wrote {file}. Review it, and serve with --flagfile={file}\n")


@contextmanager
def _written(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise ConfigurationError(f"--autotune cannot write {file}: {exc.strerror}.") from exc


def shapes(cpus: int) -> Iterator[tuple[int, int]]:
    """Threads and instances that use so many CPUs, or fewer."""
    for threads in sorted({*(1 << power for power in range(cpus.bit_length()) if 1 << power <= cpus), cpus}):
        yield from ((threads, instances) for instances in sorted({1, cpus // threads}))


def choose(trials: Sequence[Trial], latency_s: float) -> Trial:
    """The most examples a second within the limit; of those within a twentieth of it, the fastest to answer."""
    good = [trial for trial in trials if trial.latency_s <= latency_s]
    if not good:
        least = min(trial.latency_s for trial in trials)
        raise ConfigurationError(
            f"No configuration answers within {latency_s * 1e3:g} ms: the fastest takes {least * 1e3:.1f} ms. Raise "
            "--autotune_latency_ms, or export the model for a faster runtime or precision."
        )
    most = max(trial.examples_per_s for trial in good)
    return min((trial for trial in good if trial.examples_per_s >= 0.95 * most), key=lambda trial: trial.latency_s)


def _newest(options: ServerOptions) -> tuple[str, int, Path]:
    if len(options.models) != 1:
        raise ConfigurationError(
            f"--autotune is for one model; there are {len(options.models)}. Use --model_name and --model_base_path."
        )
    (model,) = options.models
    if not isinstance(model.base_path, Path):
        raise ConfigurationError(f"--autotune is for a local directory; received {model.base_path}.")
    versions = [path for path in model.base_path.glob("[0-9]*") if path.name.isdecimal()]
    if not versions:
        raise ConfigurationError(f"{model.base_path} holds no version; there is nothing to measure.")
    path = max(versions, key=lambda each: int(each.name))
    return model.name, int(path.name), path


def _rows(servable: Servable, threads: int, instances: int, latency_s: float) -> Iterator[Trial]:
    names = [name for name, each in servable.signatures.items() if each.decode is None]
    if not names:
        raise ConfigurationError("The model has no signature that takes numbers; --autotune measures one that does.")
    graph = servable.signatures[DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in names else names[0]].compute
    described = servable.backend.signatures[graph]
    # Where rows depend on their neighbours, or gain nothing together, requests are computed one by one.
    most = _MOST_ROWS if graph in shared_graphs(servable) else 1
    rows = 1
    while rows <= most:
        batch = probe(described, rows)
        if batch is None:
            raise ConfigurationError(
                f"Graph {graph!r} takes something else than rows of numbers; set the flags by hand for such a model."
            )
        outputs = [spec.name for spec in described.outputs]

        def run(batch: dict[str, np.ndarray] = batch, outputs: list[str] = outputs) -> None:
            servable.backend.run(graph, batch, outputs)

        trial = _measure(run, threads=threads, instances=instances, rows=rows)
        yield trial
        if trial.latency_s > latency_s:
            return
        rows *= 2


def _measure(run: Callable[[], None], *, threads: int, instances: int, rows: int) -> Trial:
    try:
        run()
    except InvalidRequestError as exc:
        raise ConfigurationError(f"The model does not take random numbers, which --autotune sends: {exc}") from exc
    started = time.perf_counter()

    def work() -> list[float]:
        seconds: list[float] = []
        while len(seconds) < _LEAST or time.perf_counter() - started < _SECONDS:
            begin = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - begin)
        return seconds

    with ThreadPoolExecutor(instances) as pool:
        found = [future.result() for future in [pool.submit(work) for _ in range(instances)]]
    elapsed = time.perf_counter() - started
    return Trial(
        threads=threads,
        instances=instances,
        rows=rows,
        examples_per_s=rows * sum(map(len, found)) / elapsed,
        batch_s=float(np.quantile(np.concatenate(found), 0.99)),
    )


_HEAD = "threads  instances  rows  examples/s  p99 of a batch"


def _line(trial: Trial, latency_s: float, best: Trial | None = None) -> str:
    verdict = "chosen" if trial is best else "" if trial.latency_s <= latency_s else "too slow"
    return (
        f"{trial.threads:7}  {trial.instances:9}  {trial.rows:4}  {trial.examples_per_s:10,.0f}  "
        f"{trial.batch_s * 1e3:11.2f} ms  {verdict}"
    ).rstrip()
