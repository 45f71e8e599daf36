"""The loadtests room: Locust users that check answers, and limits that a run must keep.

Importing it imports no Locust, which would patch the whole process: the users
are in ``modelyard.loadtests.users``, for locustfiles.
"""

from modelyard.loadtests.options import Limits, LoadTestOptions, Measured, broken_limits
from modelyard.loadtests.traffic import check_answer

__all__ = ["Limits", "LoadTestOptions", "Measured", "broken_limits", "check_answer"]
