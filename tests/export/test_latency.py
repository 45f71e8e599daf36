from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from modelyard.errors import VerificationError
from modelyard.export import ExportEvent, Reference, verify
from modelyard.export.isolation import Worker
from modelyard.export.runtimes import Arrays, _timing, load_runtime, measure_latency
from modelyard.export.runtimes._latency import PROCESS_SECONDS, _Job, thread_counts
from modelyard.export.runtimes._timing import TimedApart, TimedHere, Timing
from tests.export.conftest import OPTIONS


def test_tensorflow_has_a_process_for_every_number_of_threads(reference: Reference, converted: Path) -> None:
    options = replace(OPTIONS, measure_seconds=PROCESS_SECONDS)
    events: list[ExportEvent] = []
    checks = {name: verify(reference, converted, format=name, options=options) for name in ("saved_model", "tflite")}
    rows = measure_latency(reference, converted, checks=checks, options=options, progress=events.append)
    counts = set(thread_counts(len(os.sched_getaffinity(0))))
    main = [each for each in rows if each.signature == "serving_default" and each.batch_size == 1]
    for runtime in ("tensorflow", "litert"):
        assert {each.threads for each in main if each.runtime == runtime} == counts
    assert len(main) == 2 * len(counts)
    assert all(each.p50_us > 0 for each in rows)
    assert events[-1].done == events[-1].total


def timing(directory: Path, reference: Reference, name: str, inputs: Arrays) -> Timing:
    return Timing(
        directory=directory, format="saved_model", precision="float32", runtime="tensorflow", threads=2, graphs=(),
        signatures=reference.source.signatures, described={}, renamed={}, computed={}, inputs={name: inputs},
    )  # fmt: skip


def test_a_process_times_what_it_was_given(reference: Reference, converted: Path) -> None:
    worker = Worker(threads=2)
    for name in ("serving_default", "image_bytes"):
        process = TimedApart(worker, timing(converted, reference, name, reference.data.inputs[name]))
        times = process.time(name, batch_size=3, first=0, calls=5, seconds=60.0)
        # It ends after the call during which its time is up.
        once = process.time(name, batch_size=1, first=5, calls=1000, seconds=0.0)
        process.close()
        assert len(times) == 5 and len(once) == 1
        # A call takes longer than the clock takes to be read, and less than a minute.
        assert all(10_000 < each < 60e9 for each in times)
    assert worker.alive
    wrong = {"image": np.zeros((4, 3, 3, 1), np.float32)}
    process = TimedApart(worker, timing(converted, reference, "serving_default", wrong), own=True)
    with pytest.raises(VerificationError, match="tensorflow failed on graph 'serving_default'"):
        process.time("serving_default", batch_size=1, first=0, calls=1, seconds=1.0)
    os.kill(worker.pid, signal.SIGKILL)
    for _ in range(2):
        # Whoever asks again is told again.
        with pytest.raises(VerificationError, match=r"Format saved_model: .*want of memory \(SIGKILL\) .* 2 threads"):
            process.time("serving_default", batch_size=1, first=0, calls=1, seconds=1.0)
    process.close()


def test_each_call_gets_other_examples_as_many_as_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    monkeypatch.setattr(
        _timing, "call_signature", lambda runtime, name, signature, example: seen.append(example["x"].tolist())
    )
    timed = TimedHere(cast(Any, None), cast(Any, {"f": None}), {"f": {"x": np.arange(7)}})
    assert len(timed.time("f", batch_size=3, first=1, calls=3, seconds=60.0)) == 3
    assert seen == [[3, 4, 5], [6, 0, 1], [2, 3, 4]]


def test_what_times_say_of_a_batch() -> None:
    job = _Job(
        format="onnx", precision="float32", runtime="onnxruntime", signature="f", threads=2, batch_size=32, apart=False
    )  # fmt: skip
    job.times = [1_000_000, 2_000_000, 1_000_000, 4_000_000]
    found = job.result()
    # The median of a call, in microseconds, and examples of all calls in their time.
    assert (found.p50_us, found.examples_per_s) == pytest.approx((1500.0, 4 * 32 / 0.008))
    assert (found.batch_size, found.threads, found.runtime) == (32, 2, "onnxruntime")


def test_a_process_that_cannot_load_says_why(reference: Reference, tmp_path: Path) -> None:
    worker = Worker(threads=2)
    with pytest.raises(VerificationError, match="(?s)Format saved_model: tensorflow cannot load it.*SavedModel"):
        TimedApart(worker, timing(tmp_path, reference, "embed", {}), own=True)
    assert not worker.alive


def test_a_runtime_that_fails_here(reference: Reference, converted: Path) -> None:
    runtime = load_runtime("tflite", converted)
    timed = TimedHere(runtime, reference.source.signatures, {"serving_default": {"image": np.zeros((4, 1), np.int32)}})
    with pytest.raises(VerificationError, match="litert failed on graph 'serving_default'"):
        timed.time("serving_default", batch_size=1, first=0, calls=1, seconds=1.0)
