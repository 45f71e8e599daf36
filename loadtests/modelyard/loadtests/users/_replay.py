"""A user that sends what was recorded, in the order in which it was."""

from __future__ import annotations

import time
from typing import Any

import grpc
from locust import User, constant_throughput, task

from modelyard.errors import LoadTestError
from modelyard.loadtests._decode import Checker
from modelyard.loadtests.users._state import state_of


class ReplayUser(User):
    """Sends recorded requests over gRPC, byte by byte as they were; all users of a process share the recording.

    Locust's loop is closed: ``--rate`` says how many requests a user sends per
    second. ``modelyard loadtest run --replay`` sends at the recorded times.
    """

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.state = state_of(environment)
        self._wait = constant_throughput(self.state.options.rate)
        self._checker = Checker(())

    def wait_time(self) -> float:
        """Seconds until the next request is due."""
        wait: float = self._wait(self)
        return wait

    def on_start(self) -> None:
        """Makes the channel."""
        scheme, _, address = self.state.options.grpc_url.partition("://")
        if scheme == "grpcs":
            self._channel = grpc.secure_channel(address, grpc.ssl_channel_credentials())
        else:
            self._channel = grpc.insecure_channel(address)

    def on_stop(self) -> None:
        """Closes the channel."""
        self._channel.close()

    @task
    def replay(self) -> None:
        """The next request of the recording; after the last comes the first."""
        request = self.state.next_recorded()
        error: Exception | None = None
        answer = b""
        start = time.perf_counter()
        try:
            call = self._channel.unary_unary(request.path, None, None)
            answer = call(request.body, timeout=self.state.options.timeout_s)
            stop = time.perf_counter()
            hits = self._checker.hits(request, answer)
        except (grpc.RpcError, LoadTestError) as exc:
            stop = time.perf_counter()
            error = exc
        else:
            self.state.counted[request.kind] += request.rows
            self.state.hits[request.kind] += hits
        api, _, name = request.kind.partition(" ")
        self.environment.events.request.fire(
            request_type=api,
            name=name,
            response_time=(stop - start) * 1000,
            response_length=len(answer),
            exception=error,
            context={},
        )
