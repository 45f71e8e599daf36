"""One user for each API; all send the same images and check the same things."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from locust import User, constant_throughput, task

from modelyard.clients import Client, ClientOptions, connect
from modelyard.errors import ModelyardError
from modelyard.loadtests._answers import check_answer
from modelyard.loadtests._requests import EXAMPLE, IMAGE_BYTES, examples
from modelyard.loadtests.users._state import state_of


class _ClassifierUser(User):
    """Sends real test images through modelyard's client and checks every answer."""

    abstract = True
    transport: ClassVar[str]
    client: Client

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.state = state_of(environment)
        self._wait: Callable[[Any], float] = constant_throughput(self.state.options.rate)
        # Which images are sent has nothing to keep secret.
        self._rng = random.Random()
        self._payloads = [
            payload for api, _, payload in (kind.partition(" ") for kind in self.state.kinds) if api == self.transport
        ]

    def wait_time(self) -> float:
        """Seconds until the next request is due."""
        return self._wait(self)

    def on_start(self) -> None:
        """Makes the client; its first request opens the connection."""
        options = self.state.options
        url = options.grpc_url if self.transport.startswith("grpc") else options.rest_url
        if self.transport.endswith("-v2"):
            url = url.replace("://", "+v2://", 1)
        self.client = connect(url, ClientOptions(timeout_s=options.timeout_s))

    def on_stop(self) -> None:
        """Closes the client."""
        self.client.close()

    @task
    def predict(self) -> None:
        """One request of one of the kinds, tensors three times as often as the others."""
        weights = [3 if payload == "image" else 1 for payload in self._payloads]
        (payload,) = self._rng.choices(self._payloads, weights)
        state = self.state
        chosen = state.images.choose(state.options.rows, self._rng)
        if payload == "image":
            self._send(payload, "", chosen, {"image": state.images.batch(chosen)})
        elif payload == IMAGE_BYTES:
            self._send(payload, IMAGE_BYTES, chosen, {IMAGE_BYTES: state.images.encoded(chosen)})
        elif payload == EXAMPLE:
            signature, name = state.example_signature
            self._send(payload, signature, chosen, {name: examples(state.images.batch(chosen))})

    def _send(self, name: str, signature: str, chosen: npt.NDArray[np.int64], inputs: Mapping[str, Any]) -> None:
        error: ModelyardError | None = None
        size = 0
        start = time.perf_counter()
        stop = start
        try:
            try:
                outputs = self.client.predict(self.state.options.model, inputs, signature=signature)
            finally:
                stop = time.perf_counter()
            size = sum(array.nbytes for array in outputs.values())
            check_answer(outputs, len(chosen), self.state.images.class_names)
        except ModelyardError as exc:
            error = exc
        else:
            kind = f"{self.transport} {name}"
            self.state.counted[kind] += len(chosen)
            self.state.hits[kind] += int(np.sum(outputs["class_id"] == self.state.images.labels[chosen]))
        self.environment.events.request.fire(
            request_type=self.transport,
            name=name,
            response_time=(stop - start) * 1000,
            response_length=size,
            exception=error,
            context={},
        )


class GrpcUser(_ClassifierUser):
    """A user of TensorFlow Serving's gRPC API."""

    transport = "grpc"


class RestUser(_ClassifierUser):
    """A user of TensorFlow Serving's REST API."""

    transport = "rest"


class GrpcV2User(_ClassifierUser):
    """A user of the Open Inference Protocol over gRPC; there are some where ``--kind`` names it."""

    transport = "grpc-v2"


class RestV2User(_ClassifierUser):
    """A user of the Open Inference Protocol over REST; there are some where ``--kind`` names it."""

    transport = "rest-v2"
