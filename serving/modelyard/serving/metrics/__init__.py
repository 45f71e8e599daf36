"""What is counted: Prometheus' metrics and Triton's statistics."""

from modelyard.serving.metrics._exposition import exposition
from modelyard.serving.metrics._families import FAMILIES, LATENCY_BUCKETS_US, Family
from modelyard.serving.metrics._metrics import Metrics
from modelyard.serving.metrics._parts import Parts
from modelyard.serving.metrics._process import watch_process
from modelyard.serving.metrics._series import Exemplar, HistogramValue, Native, percentile
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
    "Exemplar",
    "FAMILIES",
    "Family",
    "HistogramValue",
    "LATENCY_BUCKETS_US",
    "Metrics",
    "ModelStatistics",
    "Native",
    "Parts",
    "RequestTimes",
    "VersionStatistics",
    "exposition",
    "percentile",
    "watch_process",
]
