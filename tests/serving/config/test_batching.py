"""The file of batching parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelyard.errors import ConfigurationError
from modelyard.serving import parse_flags
from modelyard.serving.config import BatchParameters, LoadOptions, ServerOptions, read_batch_parameters

PARAMETERS = """
max_batch_size { value: 8 } batch_timeout_micros { value: 2500 } max_enqueued_batches { value: 3 }
num_batch_threads { value: 5 } thread_pool_name { value: "pool" } allowed_batch_sizes: 2 allowed_batch_sizes: 4
pad_variable_length_inputs: true enable_large_batch_splitting { value: true } max_execution_batch_size { value: 4 }
"""


def test_the_parameters_file(tmp_path: Path) -> None:
    file = tmp_path / "batching.config"
    file.write_text(PARAMETERS)
    assert read_batch_parameters(file) == BatchParameters(
        max_batch_size=8,
        timeout_s=0.0025,
        max_enqueued_batches=3,
        threads=5,
        pool_name="pool",
        allowed_batch_sizes=(2, 4),
        pad_variable_length=True,
        split_large=True,
        max_execution_batch_size=4,
    )
    file.write_text("")
    assert read_batch_parameters(file) == BatchParameters()


def test_a_file_from_an_editor_of_windows(tmp_path: Path) -> None:
    file = tmp_path / "batching.config"
    file.write_bytes(b"\xef\xbb\xbf# rows\r\nmax_batch_size { value: 8 }\r\n")
    assert read_batch_parameters(file, pad_with_zeros=False).max_batch_size == 8


def test_the_largest_numbers_are_no_limit(tmp_path: Path) -> None:
    file = tmp_path / "batching.config"
    file.write_text(f"max_enqueued_batches {{ value: {(1 << 63) - 1} }}")
    assert read_batch_parameters(file).max_queued_rows == (1 << 63) - 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_batch_size: 8", "in protobuf text format"),
        ("max_batch_size { value: 0 }", "max_batch_size is 0; expected a positive number"),
        ("batch_timeout_micros { value: -1 }", "batch_timeout_micros is -1"),
        ("max_batch_size { value: 8 } allowed_batch_sizes: 4 allowed_batch_sizes: 2", "expected ascending"),
        ("max_batch_size { value: 8 } allowed_batch_sizes: 4", "it must equal the largest batch, 8"),
        (
            "max_batch_size { value: 8 } enable_large_batch_splitting { value: true } "
            "max_execution_batch_size { value: 16 }",
            "must not exceed max_batch_size",
        ),
    ],
)
def test_parameters_that_make_no_sense(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "batching.config"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_batch_parameters(file)


@pytest.mark.parametrize(
    ("device", "threads", "batching", "expected"),
    [
        ("cpu", 8, None, 8),
        ("cuda:1", 8, None, 2),
        ("cuda", 1, None, 1),
        ("openvino:GPU", 8, None, 8),
        ("cuda", 8, BatchParameters(threads=5), 5),
        ("cpu", 8, BatchParameters(), 8),
    ],
)
def test_batches_at_the_same_time(device: str, threads: int, batching: BatchParameters | None, expected: int) -> None:
    options = ServerOptions(load=LoadOptions(device=device), threads=threads, batching=batching)
    assert options.parallel_batches == expected


def test_the_name_of_the_threads_is_upstream_s_without_a_file_too(tmp_path: Path) -> None:
    """It is a label of ``queuing_latency``."""
    flags = ["--model_base_path=/m", "--enable_batching"]
    file = tmp_path / "batching.config"
    file.write_text("max_batch_size { value: 8 }")
    for more, name in (([], "model_server_batch_threads"), ([f"--batching_parameters_file={file}"], "batch_threads")):
        batching = parse_flags([*flags, *more]).batching
        assert batching is not None
        assert batching.pool_name == name
