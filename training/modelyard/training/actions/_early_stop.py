"""Ends a run that gets no better."""

from __future__ import annotations

from modelyard.training.run import (
    EvalResult,
    Evaluated,
    Event,
    Goal,
    RunStarted,
    finite_number,
    goal_of,
    whole_number,
)


class EarlyStop:
    """Action that ends a run when the last evaluations were no better than the best before them.

    It is exact after a resume, and a run that it has ended stays ended.

    Args:
        goal: What better means, or its text: ``test_accuracy``, or ``-test_loss`` where less is better; the trainer
            makes sure that the evaluation has its number.
        patience: How many evaluations in a row may be no better.
        min_delta: By how much an evaluation must be better to count.

    Raises:
        ConfigurationError: ``patience`` is no whole number from 1, or ``min_delta`` no number from 0.
    """

    def __init__(self, goal: Goal | str, *, patience: int, min_delta: float = 0.0) -> None:
        self.goal = goal_of(goal)
        self._patience = whole_number("patience", patience, 1)
        self._min_delta = finite_number("min_delta", min_delta, 0)
        self._best: float | None = None
        self._waited = 0

    @property
    def should_stop(self) -> bool:
        """Whether the run has had enough evaluations that were no better."""
        return self._waited >= self._patience

    def __call__(self, event: Event) -> None:
        """Looks at the numbers of an evaluation.

        Raises:
            ConfigurationError: The evaluation has no number of the goal's name.
        """
        if isinstance(event, RunStarted):
            self._best, self._waited = None, 0
            for result in event.history:
                self._add(result)
        elif isinstance(event, Evaluated):
            self._add(event.result)

    def _add(self, result: EvalResult) -> None:
        value = self.goal.value(result)
        if self._best is None or self.goal.is_better(value, self._best, by=self._min_delta):
            self._best, self._waited = value, 0
        else:
            self._waited += 1
