"""A process of its own for what may end the one that it runs in: converters and runtimes are C++ libraries."""

from modelyard.export.isolation._causes import ended_by, remove_staging
from modelyard.export.isolation._messages import Kept
from modelyard.export.isolation._worker import Worker, WorkerEndedError

__all__ = ["Kept", "Worker", "WorkerEndedError", "ended_by", "remove_staging"]
