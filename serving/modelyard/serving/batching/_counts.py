"""TensorFlow Serving's metrics of batching."""

from __future__ import annotations

from modelyard.serving.config import BatchParameters
from modelyard.serving.metrics import Metrics

_PREFIX = ":tensorflow:serving:batching_session:"


class BatchCounts:
    """Counts what is batched by parameters of TensorFlow Serving.

    Args:
        metrics: Where.
        parameters: How it is batched.
    """

    def __init__(self, metrics: Metrics, parameters: BatchParameters) -> None:
        self._metrics = metrics
        self._pool = {"thread_pool_name": parameters.pool_name}

    def request(self, rows: int) -> None:
        """A request came.

        Args:
            rows: Its rows.
        """
        self._metrics.observe(f"{_PREFIX}input_batch_size", {}, rows)

    def waited(self, microseconds: float) -> None:
        """A request is computed.

        Args:
            microseconds: How long it was in the queue.
        """
        self._metrics.observe(f"{_PREFIX}queuing_latency", self._pool, microseconds)

    def execution(self, rows: int, *, size: int) -> None:
        """A batch is computed.

        Args:
            rows: Of the requests.
            size: Rows with those that pad it.
        """
        self._metrics.observe(f"{_PREFIX}processed_batch_size", {}, size)
        self._metrics.observe(f"{_PREFIX}padding_size", {"execution_batch_size": str(size)}, size - rows)
        self._metrics.count(f"{_PREFIX}wrapped_run_count", {})
