from __future__ import annotations

import pytest

from modelyard.artifact import Latency
from modelyard.errors import ConfigurationError
from modelyard.export.runtimes import main_signature, rank_runtimes, thread_counts

FORMATS = {"tensorflow": "saved_model", "litert": "tflite"}


def measured(
    runtime: str,
    p50_us: float,
    *,
    threads: int = 1,
    precision: str = "float32",
    batch: int = 1,
    name: str = "f",
    rate: float | None = None,
) -> Latency:
    return Latency(
        format=FORMATS.get(runtime, "onnx"),
        runtime=runtime,
        signature=name,
        batch_size=batch,
        threads=threads,
        p50_us=p50_us,
        precision=precision,
        examples_per_s=rate,
    )


def test_the_fastest_first_and_tensorflow_last() -> None:
    rows = [measured("tensorflow", 1.0, threads=2), measured("litert", 3.0), measured("onnxruntime", 2.0)]
    choices = rank_runtimes(rows, signature="f")
    assert [each.runtime for each in choices] == ["onnxruntime", "litert", "tensorflow"]
    assert [each.speedup for each in choices] == [0.5, pytest.approx(1 / 3), 1.0]


def test_other_signatures_and_batches_do_not_count() -> None:
    rows = [
        measured("litert", 2.0),
        measured("onnxruntime", 3.0),
        measured("onnxruntime", 0.1, batch=32),
        measured("onnxruntime", 0.1, name="g"),
    ]
    (first, second) = rank_runtimes(rows, signature="f")
    assert (first.runtime, first.speedup, second.p50_us) == ("litert", None, 3.0)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # Twice as fast is worth a thread and 8 bits; a few percent are not.
        ([(10.0, 1, "float32"), (5.0, 2, "int8")], (2, "int8")),
        ([(10.0, 1, "float32"), (9.2, 2, "float32")], (1, "float32")),
        ([(10.0, 1, "float32"), (9.5, 1, "int8")], (1, "float32")),
        ([(10.0, 1, "int8_dynamic"), (9.5, 1, "float16")], (1, "float16")),
    ],
)
def test_what_is_as_fast_is_chosen_by_threads_and_precision(
    rows: list[tuple[float, int, str]], expected: tuple[int, str]
) -> None:
    (choice,) = rank_runtimes(
        [measured("onnxruntime", time, threads=threads, precision=precision) for time, threads, precision in rows],
        signature="f",
    )
    assert (choice.threads, choice.precision) == expected


@pytest.mark.parametrize(
    ("litert", "onnxruntime", "rates", "expected"),
    [
        # A difference of 5 % is another one in the next export; in large batches a third more is not.
        (2.0, 2.1, (100.0, 140.0), "onnxruntime"),
        (2.1, 2.0, (140.0, 100.0), "litert"),
        # No difference at all: always the same one.
        (2.0, 2.1, (100.0, 95.0), "onnxruntime"),
        (2.1, 2.0, (100.0, 105.0), "onnxruntime"),
        # One of them had no time for large batches.
        (2.0, 2.1, (100.0, None), "onnxruntime"),
        (2.0, 3.0, (100.0, 140.0), "litert"),
    ],
)
def test_runtimes_that_are_as_fast_are_told_apart_by_large_batches(
    litert: float, onnxruntime: float, rates: tuple[float, float | None], expected: str
) -> None:
    rows = [measured("litert", litert), measured("onnxruntime", onnxruntime), measured("tensorflow", 1.9)]
    for runtime, rate in zip(("litert", "onnxruntime"), rates, strict=True):
        if rate is not None:
            rows.append(measured(runtime, 50.0, batch=32, rate=rate))
    choices = rank_runtimes(rows, signature="f")
    assert choices[0].runtime == expected
    assert {each.runtime for each in choices} == {"litert", "onnxruntime", "tensorflow"}


def test_a_runtime_that_is_asked_for_comes_first() -> None:
    rows = [measured("litert", 2.0), measured("onnxruntime", 3.0)]
    assert [each.runtime for each in rank_runtimes(rows, signature="f", runtime="onnxruntime")][0] == "onnxruntime"
    with pytest.raises(ConfigurationError, match="openvino was asked for, .* there is litert and onnxruntime"):
        rank_runtimes(rows, signature="f", runtime="openvino")


def test_nothing_measured_is_no_choice() -> None:
    assert rank_runtimes([], signature="f") == ()


def test_thread_counts_and_the_signature_that_decides() -> None:
    assert [thread_counts(cores) for cores in (1, 2, 6, 8)] == [(1,), (1, 2), (1, 2, 4, 6), (1, 2, 4, 8)]
    assert main_signature(["b", "serving_default"]) == "serving_default"
    assert main_signature(["b", "a"]) == "b"
