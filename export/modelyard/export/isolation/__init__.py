"""A process of its own for what may end the one that it runs in: converters and runtimes are C++ libraries."""

from modelyard.export.isolation._worker import Kept, Worker, WorkerEndedError, ended_by, remove_staging

__all__ = ["Kept", "Worker", "WorkerEndedError", "ended_by", "remove_staging"]
