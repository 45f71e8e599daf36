"""Which version answers requests that name none: canaries, shadows, and what is rolled back."""

from modelyard.serving.rollout._rollout import Rollout

__all__ = ["Rollout"]
