"""What this process may take of its machine: by the system, and by the control groups that it is in."""

from modelyard.serving.machine._cpus import available_cpus
from modelyard.serving.machine._memory import free_bytes, memory_limit, resident_bytes
from modelyard.serving.machine._threads import startable_threads, thread_limits

__all__ = ["available_cpus", "free_bytes", "memory_limit", "resident_bytes", "startable_threads", "thread_limits"]
