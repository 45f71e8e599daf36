"""onnxruntime's sessions of one graph, one for each shape of its inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from modelyard.serving.backends._base import Arrays

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

#: Each has the graph's weights on the card.
_MOST = 16


class ShapeSessions:
    """Sessions of a graph with convolutions on a card.

    There, a convolution keeps what it has prepared for the last shape alone, and prepares itself anew for each other
    one, which takes a network up to two seconds (onnxruntime 1.20 to 1.31; microsoft/onnxruntime, issue 23006). What
    has not been used for longest makes way for what is new.

    Args:
        make: Makes a session.
    """

    def __init__(self, make: Callable[[], InferenceSession]) -> None:
        self._make = make
        self._lock = threading.Lock()
        #: Made, and of no shape yet.
        self.first = make()
        self._spare: InferenceSession | None = self.first
        self._by_shape: dict[tuple[tuple[str, tuple[int, ...]], ...], InferenceSession] = {}

    def of(self, inputs: Arrays) -> InferenceSession:
        """The session of the inputs' shapes."""
        key = tuple((name, inputs[name].shape) for name in sorted(inputs))
        with self._lock:
            found = self._by_shape.pop(key, None) or self._spare or self._make()
            self._spare = None
            self._by_shape[key] = found
            if len(self._by_shape) > _MOST:
                del self._by_shape[next(iter(self._by_shape))]
            return found
