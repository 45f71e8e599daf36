"""Which version answers requests that name none: canaries, shadows, and what is rolled back."""

from modelyard.serving.rollout._rollout import CoreTraffic, Rollout
from modelyard.serving.rollout._rows import TrafficRow

__all__ = ["CoreTraffic", "Rollout", "TrafficRow"]
