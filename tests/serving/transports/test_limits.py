"""How long a request may take."""

from __future__ import annotations

import time

import pytest

from modelyard.serving.requests import Caller
from modelyard.serving.transports.http import HttpLimits


def test_what_a_request_has_taken_is_no_time_that_it_has_left() -> None:
    limits = HttpLimits(timeout_s=30.0)
    assert limits.left_s(None) == limits.left_s(Caller()) == 30.0
    assert limits.left_s(Caller(deadline=time.monotonic() + 2.0)) == pytest.approx(2.0, abs=0.5)
    assert limits.left_s(Caller(deadline=time.monotonic() - 2.0)) == 0.0
