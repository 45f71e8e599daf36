"""All processes of a cluster on this machine: started, listened to, and stopped together. Needs no TensorFlow."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any, TextIO

from modelyard.errors import ConfigurationError, TrainingError
from modelyard.training.distribute._cluster import TF_CONFIG, Cluster

#: What a process gets to end by itself, in seconds: after Ctrl-C to finish its loop and save; after another one's
#: death to find out and say so.
GRACE_S = 60.0
_POLL_S = 0.05
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class LocalClusterOptions:
    """Which processes to start; with parameter servers a chief is started as well.

    ``grace_s`` is how long, in seconds, processes may take to end by themselves before they are killed.
    """

    workers: int
    parameter_servers: int = 0
    grace_s: float = GRACE_S

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigurationError(f"--local-cluster is {self.workers}; expected at least one worker.")
        if self.parameter_servers < 0:
            raise ConfigurationError(f"parameter_servers is {self.parameter_servers}; expected a number >= 0.")


def run_local_cluster(
    command: Sequence[str],
    options: LocalClusterOptions,
    *,
    environment: Mapping[str, str] | None = None,
    output: TextIO | None = None,
) -> int:
    """Runs one command in every process of a cluster, each with its ``TF_CONFIG``.

    What the processes write comes out line by line, with their names before it. Ctrl-C and SIGTERM are handed on to all
    of them; the second one kills. When a process that the others need has died, they may say so and are then stopped.
    """
    clusters = local_clusters(options)
    sink = _Lines(output or sys.stderr)
    processes: list[_Process] = []
    group = _Group(processes, options, sink)
    try:
        for cluster in clusters:
            processes.append(_Process(cluster, command, environment or {}, sink))
            sink.write("cluster", f"{cluster.name} is process {processes[-1].pid}.\n")
        with group:
            return group.wait()
    finally:
        for process in processes:
            process.kill()


def local_clusters(options: LocalClusterOptions) -> list[Cluster]:
    """The cluster as each of its processes sees it, the chief first, on ports of this machine that are free."""
    sizes = {"chief": 1 if options.parameter_servers else 0, "worker": options.workers, "ps": options.parameter_servers}
    ports = iter(_free_ports(sum(sizes.values())))
    addresses = {job: tuple(f"127.0.0.1:{next(ports)}" for _ in range(size)) for job, size in sizes.items() if size}
    return [Cluster(addresses=addresses, job=job, index=index) for job in addresses for index in range(sizes[job])]


class _Process:
    """One process of the group, and the thread that reads what it writes."""

    def __init__(self, cluster: Cluster, command: Sequence[str], environment: Mapping[str, str], sink: _Lines) -> None:
        self.cluster = cluster
        self._told = False
        try:
            self._process = subprocess.Popen(
                list(command),
                env={**os.environ, **environment, TF_CONFIG: cluster.to_json(), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                # Ctrl-C in a terminal reaches the whole group: here it comes through this process, once.
                start_new_session=True,
            )
        except OSError as exc:
            raise TrainingError(f"{cluster.name} could not be started: {exc}") from exc
        self._reader = threading.Thread(target=sink.copy, args=(self._process.stdout, cluster.name), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def death(self) -> str | None:
        """A sentence about an end that was no success; once."""
        code = self.code
        if not code or self._told:
            return None
        self._told = True
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{self.cluster.name} {how}"

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join(5)


class _Group:
    """All of them, and the signals of this process while it waits for them."""

    def __init__(self, processes: list[_Process], options: LocalClusterOptions, sink: _Lines) -> None:
        self._processes, self._options, self._sink = processes, options, sink
        self._signals: list[int] = []
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> _Group:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *details: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def wait(self) -> int:
        chief, members = self._processes[0], self._processes
        # A chief with servers ends for all of them; without, every process ends by itself.
        alone = bool(self._options.parameter_servers)
        passed_on, deadline = 0, None
        while any(process.code is None for process in (members[:1] if alone else members)):
            for process in members:
                death = process.death()
                if death is not None and not passed_on and deadline is None:
                    fatal = self._is_fatal(process)
                    rest = "stopping the others" if fatal else "the others go on without it"
                    self._sink.write("cluster", f"{death}; {rest}.\n")
                    deadline = time.monotonic() + self._options.grace_s if fatal else None
            while passed_on < len(self._signals):
                if passed_on:
                    return self._stop(chief)
                self._sink.write("cluster", "stopping all processes; once more kills them.\n")
                for process in members[:1] if alone else members:
                    process.signal(self._signals[0])
                passed_on, deadline = 1, time.monotonic() + self._options.grace_s
            if chief.code == 0 and deadline is None:
                # The others have nothing left to do either.
                deadline = time.monotonic() + self._options.grace_s
            if deadline is not None and time.monotonic() > deadline:
                return self._stop(chief)
            time.sleep(_POLL_S)
        return self._code(chief)

    def _is_fatal(self, process: _Process) -> bool:
        if not self._options.parameter_servers or process.cluster.job != "worker":
            return True
        workers = [other for other in self._processes if other.cluster.job == "worker"]
        return all(worker.code is not None for worker in workers)

    def _stop(self, chief: _Process) -> int:
        running = [process for process in self._processes if process.code is None]
        if running:
            self._sink.write("cluster", f"killing {', '.join(process.cluster.name for process in running)}.\n")
        for process in running:
            process.kill()
        return self._code(chief)

    def _code(self, chief: _Process) -> int:
        if self._signals:
            return EXIT_INTERRUPTED if self._signals[0] == signal.SIGINT else 128 + self._signals[0]
        code = chief.code
        return code if code is not None and code >= 0 else 1


class _Lines:
    """Lines of several processes in one stream, whole and with names."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lock = stream, threading.Lock()

    def copy(self, source: IO[str], name: str) -> None:
        with source:
            for line in source:
                self.write(name, line)

    def write(self, name: str, line: str) -> None:
        with self._lock:
            self._stream.write(f"[{name}] {line}" if line.endswith("\n") else f"[{name}] {line}\n")
            self._stream.flush()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(held.getsockname()[1]) for held in sockets]
    finally:
        for held in sockets:
            held.close()
