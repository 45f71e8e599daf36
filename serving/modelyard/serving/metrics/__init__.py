"""What is counted: Prometheus' metrics and Triton's statistics."""

from modelyard.serving.metrics._metrics import FAMILIES, Metrics
from modelyard.serving.metrics._statistics import (
    Duration,
    Execution,
    ExecutionStatistics,
    ModelStatistics,
    RequestTimes,
    VersionStatistics,
)

__all__ = [
    "Duration",
    "Execution",
    "ExecutionStatistics",
    "FAMILIES",
    "Metrics",
    "ModelStatistics",
    "RequestTimes",
    "VersionStatistics",
]
