"""Several server processes on one port, and what keeps them together."""

from modelyard.serving.runtime.workers._supervisor import Supervisor
from modelyard.serving.runtime.workers._worker import WorkerLink

__all__ = [
    "Supervisor",
    "WorkerLink",
]
