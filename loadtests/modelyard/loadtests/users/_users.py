"""One user for each API; all send the same requests and check the same things."""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import grpc
from locust import User, constant_throughput, task
from locust.env import Environment

from modelyard.clients import Client, ClientOptions, connect
from modelyard.errors import ModelyardError
from modelyard.loadtests.options import token
from modelyard.loadtests.traffic import Arrays, Checker, Request
from modelyard.loadtests.users._state import state_of

Answer = bytes | Arrays


class RequestUser(User):
    """Sends requests that were made before the run, and checks every answer."""

    abstract = True

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.state = state_of(environment)
        self._wait: Callable[[User], float] = constant_throughput(self.state.options.rate)
        self._checker = Checker()

    def wait_time(self) -> float:
        """Seconds until the next request is due."""
        return self._wait(self)

    @abstractmethod
    def next_request(self) -> Request:
        """What to send next."""

    @abstractmethod
    def answer(self, request: Request) -> Answer:
        """Sends a request, and returns the answer as bytes or decoded.

        Raises:
            ModelyardError: The server answers with an error, or not at all.
            RpcError: The same, of a request that is sent as bytes.
        """

    @task
    def send(self) -> None:
        request = self.next_request()
        error: Exception | None = None
        size = 0
        start = stop = time.perf_counter()
        try:
            try:
                answer = self.answer(request)
            finally:
                stop = time.perf_counter()
            if isinstance(answer, bytes):
                size = len(answer)
                matches = self._checker.matches(request, answer)
            else:
                size = sum(array.nbytes for array in answer.values())
                matches = self._checker.judge(request, answer)
        except (grpc.RpcError, ModelyardError) as exc:
            error = exc
        else:
            self.state.counted[request.kind] += request.known_rows
            self.state.matches[request.kind] += matches
        api, _, name = request.kind.partition(" ")
        self.environment.events.request.fire(
            request_type=api,
            name=name,
            response_time=(stop - start) * 1000,
            response_length=size,
            exception=error,
            context={},
        )


class _ApiUser(RequestUser):
    """Sends predictions through modelyard's client."""

    abstract = True
    transport: ClassVar[str]
    client: Client

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        # Which requests are sent has nothing to keep secret.
        self._rng = random.Random()
        self._kinds = [kind for kind in self.state.kinds if kind.partition(" ")[0] == self.transport]
        # Images as tensors three times as often as the others.
        self._weights = [3 if kind.endswith(" image") else 1 for kind in self._kinds]

    def on_start(self) -> None:
        """Makes the client; its first request opens the connection."""
        options = self.state.options
        url = options.grpc_url if self.transport.startswith("grpc") else options.rest_url
        if self.transport.endswith("-v2"):
            url = url.replace("://", "+v2://", 1)
        self.client = connect(url, ClientOptions(timeout_s=options.timeout_s, token=token()))

    def on_stop(self) -> None:
        self.client.close()

    def next_request(self) -> Request:
        """One of the requests of the user's API, at random."""
        (kind,) = self._rng.choices(self._kinds, self._weights)
        return self._rng.choice(self.state.requests[kind])

    def answer(self, request: Request) -> Answer:
        """Sends a prediction."""
        model, signature = request.target
        return self.client.predict(model, request.inputs, signature=signature)


class GrpcUser(_ApiUser):
    """A user of TensorFlow Serving's gRPC API."""

    transport = "grpc"

    def on_start(self) -> None:
        """Makes the client, and a channel for recorded calls that are no predictions."""
        super().on_start()
        self._channel = open_channel(self.state.options.grpc_url)

    def on_stop(self) -> None:
        super().on_stop()
        self._channel.close()

    def answer(self, request: Request) -> Answer:
        """Sends a prediction, or a recorded call as it is."""
        if request.inputs:
            return super().answer(request)
        return send_bytes(self._channel, request, self.state.options.timeout_s)


class RestUser(_ApiUser):
    """A user of TensorFlow Serving's REST API."""

    transport = "rest"


class GrpcV2User(_ApiUser):
    """A user of the Open Inference Protocol over gRPC; there are some where ``--kind`` names it."""

    transport = "grpc-v2"


class RestV2User(_ApiUser):
    """A user of the Open Inference Protocol over REST; there are some where ``--kind`` names it."""

    transport = "rest-v2"


class ReplayUser(RequestUser):
    """Sends recorded requests over gRPC, byte by byte as they were; all users of a process share the recording.

    Locust's loop is closed: ``--rate`` says how many requests a user sends per
    second. ``modelyard loadtest run --replay`` sends at the recorded times.
    """

    def on_start(self) -> None:
        self._channel = open_channel(self.state.options.grpc_url)

    def on_stop(self) -> None:
        self._channel.close()

    def next_request(self) -> Request:
        """The next request of the recording; after the last comes the first."""
        return self.state.next_recorded()

    def answer(self, request: Request) -> Answer:
        """Sends a recorded call."""
        return send_bytes(self._channel, request, self.state.options.timeout_s)


def open_channel(url: str) -> grpc.Channel:
    """Opens a channel."""
    scheme, _, address = url.partition("://")
    if scheme == "grpcs":
        return grpc.secure_channel(address, grpc.ssl_channel_credentials())
    return grpc.insecure_channel(address)


def send_bytes(channel: grpc.Channel, request: Request, timeout_s: float) -> bytes:
    """Sends a request as the bytes that it is."""
    secret = token()
    metadata = None if secret is None else (("authorization", f"Bearer {secret}"),)
    method = channel.unary_unary(request.path, None, None)
    answer: bytes = method(request.body, timeout=timeout_s, metadata=metadata)
    return answer
