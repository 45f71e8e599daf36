"""Ctrl-C and SIGTERM that wait for a good moment."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

#: What a process ends with that SIGTERM made save and stop: 128 + 15, as shells and Kubernetes know it.
EXIT_TERMINATED = 143


class InterruptGuard:
    """While it is entered, the first SIGINT or SIGTERM only sets :attr:`requested`; the second stops at once.

    Python delivers signals to the main thread; entered in another thread it does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self.on_request: Callable[[], object] | None = None
        self._stop: BaseException = KeyboardInterrupt()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> InterruptGuard:
        # It may be entered again, after what was requested has been done.
        self.requested, self._stop = False, KeyboardInterrupt()
        # A handler that is not Python's own was set on purpose, and stays.
        if threading.current_thread() is threading.main_thread():
            for number, own in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                if signal.getsignal(number) is own:
                    self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())

    def stop(self) -> BaseException:
        """What to raise when the good moment has come: KeyboardInterrupt, or SystemExit after SIGTERM."""
        return self._stop

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again, self.requested = self.requested, True
        if number == signal.SIGTERM:
            self._stop = SystemExit(EXIT_TERMINATED)
        if again:
            raise self._stop
        if self.on_request is not None:
            # Not here: what the signal has interrupted may hold a lock of TensorFlow's, for which the call would wait.
            _thread.start_new_thread(self.on_request, ())
