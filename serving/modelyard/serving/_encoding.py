"""Encoders that are cheaper for a whole batch than for its parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from modelyard.serving._requests import Arrays, Prediction


class BatchEncoder(ABC):
    """An encoder that is cheaper for a whole batch than for its parts."""

    @abstractmethod
    def __call__(self, prediction: Prediction) -> Any:
        """Encodes one prediction."""

    @abstractmethod
    def together(self, outputs: Arrays, rows: Sequence[int]) -> list[Any]:
        """Encodes the predictions of a batch.

        Args:
            outputs: The outputs of the whole batch.
            rows: Rows of each request.
        """
