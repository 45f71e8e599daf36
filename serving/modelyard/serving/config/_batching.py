"""TensorFlow Serving's batching parameters."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from modelyard.artifact import Location
from modelyard.errors import ConfigurationError
from modelyard.serving.config._text_proto import read_text_proto
from modelyard.wire import config_pb2

#: The file in a version directory that overrides the server's, where the flag allows it.
PER_MODEL_FILE = "batching_params.pbtxt"


@dataclass(frozen=True, kw_only=True)
class BatchParameters:
    """How requests are batched, as ``BatchingParameters`` says."""

    max_batch_size: int = 1000
    #: Seconds that a request waits for others.
    timeout_s: float = 0.0
    max_enqueued_batches: int = 10
    #: Batches computed at the same time; None for the cores.
    threads: int | None = None
    #: Name of the threads in metrics.
    pool_name: str = "batch_threads"
    #: Batches are padded to one of these; empty for any.
    allowed_batch_sizes: tuple[int, ...] = ()
    pad_variable_length: bool = False
    #: Inner dimensions are padded with zeros, or empty strings, and not with the tensor's own first element.
    pad_with_zeros: bool = False
    split_large: bool = False
    #: Rows of a batch at most, when splitting; None for ``max_batch_size``.
    max_execution_batch_size: int | None = None
    #: A request with more rows than a batch is computed alone, not refused.
    accept_larger: bool = False

    @property
    def execution_batch_size(self) -> int:
        """Rows of a batch at most."""
        if self.split_large and self.max_execution_batch_size is not None:
            return self.max_execution_batch_size
        return self.max_batch_size

    @property
    def max_queued_rows(self) -> int:
        # TensorFlow Serving takes the largest number of 64 bits for no limit: no product may be larger.
        return min(self.max_enqueued_batches * self.max_batch_size, sys.maxsize)

    def padded_size(self, rows: int) -> int:
        return next((size for size in self.allowed_batch_sizes if size >= rows), rows)

    @classmethod
    def greedy(cls, max_rows: int) -> BatchParameters:
        """Batches of the requests that wait when a thread is free: none waits for others, or is too large."""
        return cls(max_batch_size=max_rows, max_enqueued_batches=sys.maxsize, accept_larger=True)


def read_batch_parameters(path: Location, *, pad_with_zeros: bool = False) -> BatchParameters:
    message = read_text_proto(path, config_pb2.BatchingParameters(), flag="--batching_parameters_file")
    defaults = BatchParameters()

    def value(name: str, default: int) -> int:
        if not message.HasField(name):
            return default
        number: int = getattr(message, name).value
        if number < 0 or (number == 0 and name != "batch_timeout_micros"):
            raise ConfigurationError(f"{path}: {name} is {number}; expected a positive number.")
        return number

    parameters = BatchParameters(
        max_batch_size=value("max_batch_size", defaults.max_batch_size),
        timeout_s=value("batch_timeout_micros", 0) / 1e6,
        max_enqueued_batches=value("max_enqueued_batches", defaults.max_enqueued_batches),
        threads=value("num_batch_threads", 0) or None,
        pool_name=message.thread_pool_name.value or defaults.pool_name,
        allowed_batch_sizes=tuple(message.allowed_batch_sizes),
        pad_variable_length=message.pad_variable_length_inputs,
        pad_with_zeros=pad_with_zeros,
        split_large=message.enable_large_batch_splitting.value,
        max_execution_batch_size=value("max_execution_batch_size", 0) or None,
    )
    sizes = parameters.allowed_batch_sizes
    if sizes and (list(sizes) != sorted(set(sizes)) or sizes[0] < 1):
        raise ConfigurationError(f"{path}: allowed_batch_sizes is {list(sizes)}; expected ascending positive numbers.")
    if sizes and sizes[-1] != parameters.execution_batch_size:
        raise ConfigurationError(
            f"{path}: last of allowed_batch_sizes is {sizes[-1]}; it must equal the largest batch, "
            f"{parameters.execution_batch_size}."
        )
    if parameters.execution_batch_size > parameters.max_batch_size:
        raise ConfigurationError(
            f"{path}: max_execution_batch_size is {parameters.max_execution_batch_size}; it must not exceed "
            f"max_batch_size, {parameters.max_batch_size}."
        )
    return parameters
