"""``modelyard serve`` and ``python -m modelyard.serving``."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import sys

from modelyard.console import quiet_libraries, take_verbose, write_error
from modelyard.errors import ConfigurationError, ModelyardError, ServerError
from modelyard.serving.config import parse_flags
from modelyard.serving.machine import available_cpus, startable_threads, thread_limits
from modelyard.serving.runtime._autotune import autotune
from modelyard.serving.runtime._process import run
from modelyard.serving.servables import limit_heaps
from modelyard.serving.telemetry import configure_logging

#: What a server on the native core has with one model and no requests, beside two for each CPU.
_THREADS = 10


def main(argv: list[str]) -> int:
    argv = take_verbose(argv)
    quiet_libraries()
    # A thread that comes back from a runtime must not wait 5 ms, the default, for the event loop's turn to end.
    sys.setswitchinterval(0.0005)
    _open_standard_streams()
    _allow_descriptors()
    # Before there are threads.
    limit_heaps(max(2, available_cpus()))
    # Until the flags are read, which may change it.
    configure_logging("info", "text", sys.stderr)
    # What matters of their messages comes as errors of ours.
    for chatty, level in (("tensorflow", logging.ERROR), ("absl", logging.ERROR)):
        logging.getLogger(chatty).setLevel(level)
    try:
        options = parse_flags(argv, os.environ)
    except ConfigurationError as exc:
        write_error("serve", exc.message)
        return 2
    configure_logging(options.telemetry.log_level, options.telemetry.log_form, sys.stderr)
    try:
        if options.autotune_file:
            autotune(options)
            return 0
        if options.transport == "native":
            _check_threads(_THREADS + 2 * available_cpus())
        run(options)
    except ModelyardError as exc:
        write_error("serve", exc.message)
        return 1
    return 0


def _check_threads(needed: int) -> None:
    """Refuses to start with fewer: libraries that cannot start a thread end the process, or wait for it for ever."""
    possible = startable_threads(needed)
    if possible < needed:
        limits = "; ".join(thread_limits()) or "no limit of this process is known"
        raise ServerError(
            f"{possible} more threads can be started, and a server needs {needed}: {limits}. Raise it, such as by "
            "docker run --pids-limit, podPidsLimit of a kubelet, or ulimit -u."
        )


def _open_standard_streams() -> None:
    """Opens those that the process began without: a socket would get the number, and what a runtime says there."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free.
            os.open(os.devnull, os.O_RDWR)
    # What Python has of those is None.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)


def _allow_descriptors() -> None:
    """Raises the limit of descriptors as far as it may be: it is 1024 by default, for programs that call select()."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems, such as macOS, say that there is no limit, and have one.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
