"""An honest client in a process of its own, so that the attacker's Python costs it nothing.

It calls the model ``other`` over REST, over gRPC and over a new connection each time, in
turns, and writes what each call took for as long as its standard input is open.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.waiting import until

PAUSE_S = 0.005


@dataclass(kw_only=True)
class Calls:
    """What the calls of a while took, in seconds, and those that failed."""

    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def p99_ms(self) -> float:
        """0 where there were none."""
        return 1e3 * sorted(self.seconds)[int(0.99 * len(self.seconds))] if self.seconds else 0.0

    @property
    def worst_ms(self) -> float:
        """0 where there were none."""
        return 1e3 * max(self.seconds, default=0.0)


class Honest:
    """The client, seen from the process that attacks."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._calls = Calls()
        self._ended = 0
        self._lock = threading.Lock()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            row = json.loads(line)
            with self._lock:
                self._calls.seconds.append(row["seconds"])
                if row["error"]:
                    self._calls.failed.append(row["error"])
                self._ended += 1

    def take(self) -> Calls:
        """The calls that ended since the last time."""
        with self._lock:
            calls, self._calls = self._calls, Calls()
        return calls

    def next(self, timeout_s: float) -> bool:
        """Waits for the end of a call that begins from now on; whether it came in time."""
        # The call that is under way began before.
        enough, deadline = self._ended + 2, time.monotonic() + timeout_s
        while self._ended < enough and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._ended >= enough

    def over(self, seconds: float) -> Calls:
        """The calls of the next while."""
        self.take()
        time.sleep(seconds)
        return self.take()


@contextlib.contextmanager
def honest(grpc_port: int, rest_port: int) -> Iterator[Honest]:
    """Starts the client, and ends it."""
    command = [sys.executable, "-m", "benchmarks.torture.honest", str(grpc_port), str(rest_port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        client = Honest(process)
        try:
            until(lambda: client.take().seconds, 60, "the honest client has not called")
            yield client
        finally:
            if process.stdin is not None:
                process.stdin.close()
            client.reader.join(60)


def main() -> None:
    """Calls until standard input ends."""
    from modelyard.clients import connect

    grpc_port, rest_port = sys.argv[1:]
    urls = [f"grpc://127.0.0.1:{grpc_port}", f"http://127.0.0.1:{rest_port}"]
    kept = [connect(url) for url in urls]

    def call(client: Any) -> None:
        answer = client.predict("other", {"x": [1.0, 2.0]}, timeout_s=20)["y"].tolist()
        if answer != [3.0, 5.0]:
            raise ValueError(f"answered {answer}")

    def call_anew(url: str) -> None:
        with connect(url) as client:
            call(client)

    turns: list[Callable[[], None]] = [
        *(lambda client=client: call(client) for client in kept),
        *(lambda url=url: call_anew(url) for url in urls),
    ]
    number = 0
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        started, error = time.perf_counter(), ""
        try:
            turns[number % len(turns)]()
        except Exception as exc:  # What it is told is what is counted.
            error = f"{type(exc).__name__}: {exc}"
        print(json.dumps({"seconds": time.perf_counter() - started, "error": error}), flush=True)
        number += 1
    for client in kept:
        client.close()


if __name__ == "__main__":
    main()
