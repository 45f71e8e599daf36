"""A plan's shape as Locust's: so many users that together they make about its rate."""

from __future__ import annotations

import math

from locust import LoadTestShape

from modelyard.loadtests.options import Shape


class PlanShape(LoadTestShape):
    """Follows a plan."""

    use_common_options = True

    def __init__(self, shape: Shape, rate: float) -> None:
        super().__init__()
        self._shape = shape
        self._rate = rate
        #: Whether the whole plan was followed.
        self.ended = False

    def tick(self) -> tuple[int, float] | None:
        """Users for this moment, and how fast to start them; None at the end."""
        at = self.get_run_time()
        if at >= self._shape.seconds:
            self.ended = True
            return None
        users = max(math.ceil(self._shape.rate(at) / self._rate), 1)
        return users, float(users)
