"""Where the time of requests for one signature goes, and what their batches are like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from modelyard.serving.metrics._series import Histogram, Native

_PREFIX = ":modelyard:serving:"


class Parts:
    """The histograms of one signature of one version."""

    def __init__(self, histogram: Callable[[str], Histogram]) -> None:
        self._queue, self._decode, self._compute, self._encode = (
            histogram(f"{_PREFIX}{part}_latency") for part in ("queue", "decode", "compute", "encode")
        )
        self._rows, self._padding, self._requests = (
            histogram(f"{_PREFIX}batch_{what}") for what in ("rows", "padding", "requests")
        )

    def request(self, *, queue_ns: int, input_ns: int, output_ns: int) -> None:
        self._queue.add(queue_ns / 1e3)
        self._decode.add(input_ns / 1e3)
        self._encode.add(output_ns / 1e3)

    def batch(self, *, rows: int, padding: int, requests: int, infer_ns: int) -> None:
        self._rows.add(rows)
        self._padding.add(padding)
        self._requests.add(requests)
        self._compute.add(infer_ns / 1e3)

    def merge(self, found: Mapping[str, Any]) -> None:
        """Adds what the core has counted: native histograms by name; ``runtime`` has upstream's counts before it."""
        for name, histogram in (
            ("queue", self._queue),
            ("input", self._decode),
            ("output", self._encode),
            ("batch_rows", self._rows),
            ("batch_padding", self._padding),
            ("batch_requests", self._requests),
        ):
            histogram.merge(Native(*found[name]))
        self._compute.merge(Native(*found["runtime"][1]))
