"""Several server processes on one port, and what keeps them together."""

from modelyard.serving.workers._supervisor import Supervisor
from modelyard.serving.workers._worker import WorkerLink

__all__ = ["Supervisor", "WorkerLink"]
