"""Ctrl-C that waits for a good moment."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class InterruptGuard:
    """While it is entered, the first Ctrl-C only sets :attr:`requested`; the second interrupts at once.

    Python delivers signals to the main thread; entered in another thread it
    does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: signal._HANDLER = None
        self._active = False

    def __enter__(self) -> InterruptGuard:
        # A handler that is not Python's own is somebody's choice, and stays.
        self._active = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._active:
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._active:
            signal.signal(signal.SIGINT, self._previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
