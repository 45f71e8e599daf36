"""Answers of a batch: encoded together where the encoder can, else one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from modelyard.serving._plans import split
from modelyard.serving._requests import Arrays, ModelSpec, Prediction

#: Turns a prediction into what a transport sends.
Encode = Callable[[Prediction], Any]


class BatchEncoder(ABC):
    """An encoder that is cheaper for a whole batch than for its parts."""

    @abstractmethod
    def __call__(self, prediction: Prediction) -> Any:
        """Encodes one prediction."""

    @abstractmethod
    def together(self, outputs: Arrays, rows: Sequence[int]) -> list[Any]:
        """Encodes the predictions of a batch; what it raises makes each be encoded alone.

        Args:
            outputs: The outputs of the whole batch.
            rows: Rows of each request.
        """


def encode_all(
    encoders: Sequence[Encode], spec: ModelSpec, outputs: Arrays, rows: Sequence[int]
) -> list[tuple[Any, BaseException | None]]:
    """Encodes the answers of a batch.

    Args:
        encoders: One for each request.
        spec: What the answers say of the request.
        outputs: The outputs of the whole batch, with a row for each of the requests'.
        rows: Rows of each request.

    Returns:
        For each request its encoded answer, or the error.
    """
    first = encoders[0]
    if len(encoders) > 1 and isinstance(first, BatchEncoder) and all(each is first for each in encoders):
        try:
            return [(answer, None) for answer in first.together(outputs, rows)]
        # An answer that cannot be encoded is one request's trouble, not the batch's.
        except Exception:
            return _one_by_one(encoders, spec, outputs, rows)
    return _one_by_one(encoders, spec, outputs, rows)


def _one_by_one(
    encoders: Sequence[Encode], spec: ModelSpec, outputs: Arrays, rows: Sequence[int]
) -> list[tuple[Any, BaseException | None]]:
    answers: list[tuple[Any, BaseException | None]] = []
    for encode, values in zip(encoders, split(outputs, rows), strict=True):
        try:
            answers.append((encode(Prediction(spec=spec, outputs=values)), None))
        # As above.
        except Exception as exc:
            answers.append((None, exc))
    return answers
