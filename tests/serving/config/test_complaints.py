"""What is wrong with a file that is polled is logged once."""

from __future__ import annotations

import logging

import pytest

from modelyard.errors import ConfigurationError
from modelyard.serving.config import Complaints


def test_a_problem_is_logged_when_it_appears_and_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(logging.getLogger("test"), logging.WARNING)
    for problem in ("bad", "bad", "worse", None, "worse"):
        with complaints.about("all stays as it was"):
            if problem is not None:
                raise ConfigurationError(problem)
    complaints.say("labels", "odd")
    complaints.say("labels", "odd")
    texts = [record.getMessage() for record in caplog.records]
    assert texts == [*(f"all stays as it was: {each}" for each in ("bad", "worse", "worse")), "odd"]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_other_errors_are_not_swallowed() -> None:
    with pytest.raises(ValueError, match="bug"), Complaints(logging.getLogger("test")).about("all stays as it was"):
        raise ValueError("bug")
