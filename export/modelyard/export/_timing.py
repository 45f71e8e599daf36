"""Times of calls: of a runtime in this process, or of TensorFlow in one of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from modelyard.artifact import Signature
from modelyard.export._runtimes import Arrays, Runtime, call_signature


class Timed(Protocol):
    """Something whose calls can be timed."""

    def time(self, signature: str, *, batch_size: int, first: int, calls: int, seconds: float) -> list[int]:
        """Nanoseconds of each of some calls.

        Args:
            signature: The one to call.
            batch_size: Examples in a call.
            first: Number of the first call, which decides on its examples.
            calls: How many at most; there is at least one.
            seconds: About how long at most.
        """

    def close(self) -> None:
        """Ends what was started for it."""


class TimedHere:
    """A runtime in this process.

    Args:
        runtime: The runtime.
        signatures: Those of the model.
        inputs: Examples, by signature and input.
    """

    def __init__(self, runtime: Runtime, signatures: Mapping[str, Signature], inputs: Mapping[str, Arrays]) -> None:
        self._runtime = runtime
        self._signatures = signatures
        self._inputs = inputs

    def time(self, signature: str, *, batch_size: int, first: int, calls: int, seconds: float) -> list[int]:
        """Nanoseconds of each of some calls, the decode of encoded inputs among them.

        Args:
            signature: The one to call.
            batch_size: Examples in a call.
            first: Number of the first call, which decides on its examples.
            calls: How many at most; there is at least one.
            seconds: About how long at most.

        Raises:
            VerificationError: The runtime failed.
        """
        inputs = self._inputs[signature]
        count = len(next(iter(inputs.values())))
        times: list[int] = []
        end = time.monotonic() + seconds
        for number in range(first, first + max(1, calls)):
            rows = np.arange(number * batch_size, (number + 1) * batch_size) % count
            example = {key: values[rows] for key, values in inputs.items()}
            start = time.perf_counter_ns()
            call_signature(self._runtime, signature, self._signatures[signature], example)
            times.append(time.perf_counter_ns() - start)
            if time.monotonic() > end:
                break
        return times

    def close(self) -> None:
        """Does nothing: the runtime ends with its last reference."""
