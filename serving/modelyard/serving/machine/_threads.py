"""How many threads this process may start."""

from __future__ import annotations

import contextlib
import resource
import threading

from modelyard.serving.machine._groups import MEMBERSHIP, ROOT, control_groups, read


def startable_threads(wanted: int) -> int:
    """How many threads can be started beside those that there are: so many are, and end again."""
    end = threading.Event()
    started: list[threading.Thread] = []
    try:
        # What the system refuses is the answer.
        with contextlib.suppress(RuntimeError):
            for _ in range(wanted):
                thread = threading.Thread(target=end.wait)
                thread.start()
                started.append(thread)
    finally:
        end.set()
        for thread in started:
            thread.join()
    return len(started)


def thread_limits() -> list[str]:
    """The limits of processes, which threads count as, that hold for this process."""
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    own = [] if most == resource.RLIM_INFINITY else [f"ulimit -u is {most}"]
    files = [folder / "pids.max" for folder in control_groups("pids", ROOT, MEMBERSHIP)]
    groups = {file: read(file).strip() for file in files}
    return own + [f"{path} is {text}" for path, text in groups.items() if text.isdecimal()]
