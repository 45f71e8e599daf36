from __future__ import annotations

import signal
import threading

import pytest

from modelyard.training.run import InterruptGuard
from tests.support.waiting import until


def test_the_first_ctrl_c_asks_and_the_second_insists() -> None:
    with InterruptGuard() as guard:
        signal.raise_signal(signal.SIGINT)
        assert guard.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sigterm_asks_for_an_exit_of_143_and_tells_at_once() -> None:
    told: list[bool] = []
    with InterruptGuard() as guard:
        guard.on_request = lambda: told.append(guard.requested)
        signal.raise_signal(signal.SIGTERM)
        assert guard.requested
        until(lambda: told == [True])
        stop = guard.stop()
        assert isinstance(stop, SystemExit) and stop.code == 143
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_who_is_told_may_need_what_the_interrupted_thread_holds() -> None:
    lock, told = threading.Lock(), threading.Event()

    def tell() -> None:
        with lock:
            told.set()

    with InterruptGuard() as guard:
        guard.on_request = tell
        with lock:
            signal.raise_signal(signal.SIGINT)
        assert told.wait(30)


def test_somebody_elses_handler_stays() -> None:
    seen: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with InterruptGuard() as guard:
            signal.raise_signal(signal.SIGINT)
        assert seen == [signal.SIGINT]
        assert not guard.requested
    finally:
        signal.signal(signal.SIGINT, previous)


def test_another_thread_can_enter_it() -> None:
    entered: list[bool] = []

    def enter() -> None:
        with InterruptGuard() as guard:
            entered.append(not guard.requested)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [True]
