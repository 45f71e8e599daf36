"""How fast each exported format answers, on the exporting machine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from modelyard.artifact import DEFAULT_SIGNATURE, Latency
from modelyard.export._options import ExportEvent, ExportOptions, Progress, ignore_progress
from modelyard.export._reference import Reference
from modelyard.export._runtimes import call_signature, load_runtime

_BATCH_SIZE = 1


def measure_latency(
    reference: Reference,
    directory: Path,
    *,
    formats: Iterable[str],
    options: ExportOptions,
    progress: Progress = ignore_progress,
) -> tuple[Latency, ...]:
    """Times every signature of every format at batch size 1, on one thread where the runtime allows it.

    Each call gets another real example, decode included for encoded ones.

    Args:
        reference: Brings signatures and examples.
        directory: The version directory.
        formats: The formats to time; they were verified before.
        options: Number of calls.
        progress: Called after every measurement.

    Raises:
        VerificationError: A runtime failed.
    """
    jobs = [(format, name) for format in formats for name in reference.source.signatures]
    results = []
    runtimes = {format: load_runtime(format, directory) for format in dict.fromkeys(format for format, _ in jobs)}
    for done, (format, name) in enumerate(jobs, start=1):
        runtime, signature = runtimes[format], reference.source.signatures[name]
        inputs = reference.data.inputs[name]
        count = len(next(iter(inputs.values())))
        warm_up = max(1, options.latency_calls // 10)
        times = []
        for index in range(-warm_up, options.latency_calls):
            row = index % count
            example = {key: values[row : row + 1] for key, values in inputs.items()}
            start = time.perf_counter_ns()
            call_signature(runtime, name, signature, example)
            times.append(time.perf_counter_ns() - start)
        results.append(
            Latency(
                format=format,
                runtime=runtime.name,
                signature=name,
                batch_size=_BATCH_SIZE,
                threads=runtime.threads,
                p50_us=float(np.median(times[warm_up:])) / 1e3,
            )
        )
        progress(ExportEvent(stage="measure", done=done, total=len(jobs)))
    return tuple(results)


def choose_runtime(latency: Iterable[Latency]) -> str:
    """The runtime to serve with: the fastest that needs no TensorFlow.

    Args:
        latency: From :func:`measure_latency`.

    Returns:
        The fastest of onnxruntime and litert on the default signature (on the
        first signature where there is no default); ``tensorflow`` where
        neither was measured.
    """
    light = [each for each in latency if each.runtime != "tensorflow"]
    if not light:
        return "tensorflow"
    names = {each.signature for each in light}
    name = DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in names else light[0].signature
    return min((each for each in light if each.signature == name), key=lambda each: each.p50_us).runtime
