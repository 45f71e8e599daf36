"""What the process takes, under the names that Prometheus' client libraries give it."""

from __future__ import annotations

import time

from modelyard.serving.machine import memory_limit, resident_bytes
from modelyard.serving.metrics._metrics import Metrics


def watch_process(metrics: Metrics) -> None:
    """Shows what this process takes, as far as the system says."""
    # By the clock now: what is before the server starts is over in a moment.
    started = time.time() - time.process_time()
    metrics.watch("process_start_time_seconds", {}, lambda: started)
    metrics.watch("process_cpu_seconds_total", {}, time.process_time)
    if resident_bytes() is not None:
        metrics.watch("process_resident_memory_bytes", {}, lambda: resident_bytes() or 0)
    limit = memory_limit()
    if limit is not None:
        metrics.watch(":modelyard:serving:memory_limit_bytes", {}, lambda: limit)
