"""One user for each transport; both send the same requests and check the same things."""

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
from modelyard.loadtests.users._state import state_of

IMAGE_BYTES = "image_bytes"


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

    def wait_time(self) -> float:
        """Seconds until the next request is due."""
        return self._wait(self)

    def on_start(self) -> None:
        """Makes the client; its first request opens the connection."""
        options = self.state.options
        url = options.grpc_url if self.transport == "grpc" else options.rest_url
        self.client = connect(url, ClientOptions(timeout_s=options.timeout_s))

    def on_stop(self) -> None:
        """Closes the client."""
        self.client.close()

    @task(3)
    def image(self) -> None:
        """Tensors of pixels."""
        chosen = self.state.images.choose(self.state.options.rows, self._rng)
        self._send("image", "", chosen, {"image": self.state.images.batch(chosen)})

    @task(1)
    def image_bytes(self) -> None:
        """Image files, which the server decodes."""
        chosen = self.state.images.choose(self.state.options.rows, self._rng)
        self._send(IMAGE_BYTES, IMAGE_BYTES, chosen, {IMAGE_BYTES: self.state.images.encoded(chosen)})

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
    """A user of the gRPC API."""

    transport = "grpc"


class RestUser(_ClassifierUser):
    """A user of the REST API."""

    transport = "rest"
