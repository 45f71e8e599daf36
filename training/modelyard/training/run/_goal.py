"""What better means: a number of the evaluation, and a direction."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from modelyard.errors import ConfigurationError
from modelyard.training.run._results import EvalResult


def goal_of(text: str | Goal) -> Goal:
    """What a flag means, and the same text in Python: ``test_accuracy``, or ``-test_loss`` where less is better."""
    if isinstance(text, Goal):
        return text
    if not isinstance(text, str):
        raise ConfigurationError(f"The goal is {text!r}; expected a Goal, or a string such as 'test_accuracy'.")
    return Goal(metric=text.removeprefix("-"), mode="min" if text.startswith("-") else "max")


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A number of the evaluation that shall become as small, or as great, as it can.

    Attributes:
        metric: ``test_<name>`` for a value that ``eval_step`` returns, or for a metric that it updates.
        mode: Whether less is better, or more.

    Raises:
        ConfigurationError: An unknown mode.
    """

    metric: str = "test_loss"
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ConfigurationError(f"mode is {self.mode!r}; expected 'min' or 'max'.")

    def value(self, result: EvalResult) -> float:
        """The number of an evaluation.

        Raises:
            ConfigurationError: The evaluation has no such number.
        """
        self.check(result.evaluation)
        return result.metrics[self.metric]

    def check(self, names: Iterable[str]) -> None:
        """Refuses an evaluation, of whose numbers these are the names, without this goal's number.

        Raises:
            ConfigurationError: The evaluation has no such number.
        """
        known = sorted(f"test_{name}" for name in names)
        if self.metric not in known:
            raise ConfigurationError(
                f"The evaluation has no {self.metric!r}; it has {', '.join(known)}. "
                "Name one of these, or return it from eval_step, or update a metric of that name there."
            )

    def is_better(self, value: float, than: float, *, by: float = 0.0) -> bool:
        """Whether one number is better than another, by more than ``by``; every number is better than NaN."""
        if math.isnan(value) or math.isnan(than):
            return math.isnan(than) and not math.isnan(value)
        return value < than - by if self.mode == "min" else value > than + by

    def best(self, history: tuple[EvalResult, ...]) -> EvalResult:
        """The best evaluation; the first of several. One whose number is NaN is the worst.

        Raises:
            ConfigurationError: The evaluation has no such number.
        """
        sign = -1.0 if self.mode == "min" else 1.0

        def rank(result: EvalResult) -> tuple[bool, float]:
            value = self.value(result)
            # A comparison with NaN is False: the first evaluation would stay the best for ever.
            return (False, 0.0) if math.isnan(value) else (True, sign * value)

        return max(history, key=rank)
