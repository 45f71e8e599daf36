"""What the process takes, under the names that Prometheus' client libraries give it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from modelyard.serving.metrics._metrics import Metrics

_STATM, _MEMINFO = Path("/proc/self/statm"), Path("/proc/meminfo")
#: Limits of control groups, of version 2 and 1; without one they say max, or a number larger than any machine's memory.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def resident_bytes() -> int | None:
    """Resident memory of this process; None where the system does not say."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def watch_process(metrics: Metrics) -> None:
    """Shows what this process takes, as far as the system says."""
    # By the clock now: what is before the server starts is over in a moment.
    started = time.time() - time.process_time()
    metrics.watch("process_start_time_seconds", {}, lambda: started)
    metrics.watch("process_cpu_seconds_total", {}, time.process_time)
    if resident_bytes() is not None:
        metrics.watch("process_resident_memory_bytes", {}, lambda: resident_bytes() or 0)
    limit = _memory_limit()
    if limit is not None:
        metrics.watch(":modelyard:serving:memory_limit_bytes", {}, lambda: limit)


def _memory_limit() -> int | None:
    limits = [int(path.read_text()) for path in _LIMITS if path.is_file() and path.read_text().strip().isdecimal()]
    if _MEMINFO.is_file():
        limits.append(int(_MEMINFO.read_text().split()[1]) << 10)
    return min(limits, default=None)
