"""Which threads compute batches of a version, and since when."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from modelyard.serving.requests import Arrays
from modelyard.serving.servables._servable import Compute


class Computing:
    """Computes batches, and knows since when each thread computes one."""

    __slots__ = ("_begun", "_compute")

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._begun: dict[int, float] = {}

    def __call__(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        thread = threading.get_ident()
        self._begun[thread] = time.monotonic()
        try:
            return self._compute(graph, inputs, outputs)
        finally:
            del self._begun[thread]

    @property
    def begun(self) -> dict[int, float]:
        """When the batches that are computed now began, by the monotonic clock, by thread."""
        # One step for the interpreter: no thread comes or goes meanwhile.
        return self._begun.copy()
