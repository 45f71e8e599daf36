"""TensorFlow Serving's metrics of batching."""

from __future__ import annotations

from modelyard.serving.config import BatchParameters
from modelyard.serving.metrics import Metrics

_PREFIX = ":tensorflow:serving:batching_session:"


class BatchCounts:
    """Counts what is batched by parameters of TensorFlow Serving."""

    def __init__(self, metrics: Metrics, parameters: BatchParameters) -> None:
        self._metrics = metrics
        self._pool = {"thread_pool_name": parameters.pool_name}

    def request(self, rows: int) -> None:
        self._metrics.observe(f"{_PREFIX}input_batch_size", {}, rows)

    def waited(self, microseconds: float) -> None:
        self._metrics.observe(f"{_PREFIX}queuing_latency", self._pool, microseconds)

    def execution(self, rows: int, *, size: int) -> None:
        self._metrics.observe(f"{_PREFIX}processed_batch_size", {}, size)
        self._metrics.observe(f"{_PREFIX}padding_size", {"execution_batch_size": str(size)}, size - rows)
        self._metrics.count(f"{_PREFIX}wrapped_run_count", {})
