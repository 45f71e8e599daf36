"""The blocking client: drives the flows of one protocol over one transport."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar
from typing import Protocol as Interface

from modelyard.clients._address import parse_address
from modelyard.clients._flows import Call, Flow, GrpcProtocol, Pause, PredictCall, Protocol, RestProtocol
from modelyard.clients._requests import make_target
from modelyard.clients._results import ModelMetadata, ModelStatus, Prediction
from modelyard.errors import ConfigurationError, DeadlineExceededError, ModelyardError, UnavailableError

_T = TypeVar("_T")


class Transport(Interface):
    """Carries bytes to one server and back."""

    def send(self, call: Call, timeout_s: float) -> bytes:
        """Sends one request and waits for its answer."""

    def close(self) -> None:
        """Frees the connections."""


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """How a client behaves.

    Attributes:
        timeout_s: Deadline of an operation that names none of its own.
        metadata_ttl_s: Seconds for which what the server said about the newest
            version, or about a label, is believed. Versions never change.
    """

    timeout_s: float = 60.0
    metadata_ttl_s: float = 60.0


def connect(url: str, options: ClientOptions | None = None) -> Client:
    """Makes a client; the connection is opened by its first call.

    Args:
        url: ``grpc://host:8500``, ``grpcs://host``, ``http://host:8501`` or
            ``https://host/prefix``. The ``s`` means TLS with the system's roots.
        options: See :class:`ClientOptions`.

    Returns:
        A client, to be closed or used in a ``with`` statement. Threads may share it.

    Raises:
        ConfigurationError: Another form of URL, or a timeout that is none.
    """
    options = options or ClientOptions()
    address = parse_address(url)
    _check_timeout(options.timeout_s)
    transport: Transport
    protocol: Protocol
    # Imported here: each takes longer than all the rest of this package, and no program needs both.
    if address.protocol == "grpc":
        from modelyard.clients._grpc import GrpcTransport

        transport, protocol = GrpcTransport(address), GrpcProtocol(metadata_ttl_s=options.metadata_ttl_s)
    else:
        from modelyard.clients._rest import RestTransport

        transport, protocol = RestTransport(address), RestProtocol(metadata_ttl_s=options.metadata_ttl_s)
    return Client(address.url, transport, protocol, options)


class Client:
    """A client of one server, made by :func:`connect`.

    Every method raises errors of :mod:`modelyard.errors`, the same class for
    the same failure over every transport.

    Args:
        url: Normal form of the server's URL.
        transport: How bytes travel.
        protocol: What they mean.
        options: How to behave.
    """

    def __init__(self, url: str, transport: Transport, protocol: Protocol, options: ClientOptions) -> None:
        self._url = url
        self._transport = transport
        self._protocol = protocol
        self._options = options
        self._closed = False

    @property
    def url(self) -> str:
        """Normal form of the server's URL."""
        return self._url

    def predict(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str = "",
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> Prediction:
        """Computes the outputs of a signature.

        Arrays keep their dtype and must have the signature's. Python numbers
        and lists of them take the signature's dtype, where no float becomes an
        integer; where the signature has no such input, floats are float32 and
        integers int64. Text and bytes make string tensors.

        Args:
            model: Name of the model.
            inputs: Arrays, scalars, nested lists, text or bytes by input name.
            version: A version; None for the newest.
            label: A version label instead of a version.
            signature: Name of the signature; empty for ``serving_default``.
            outputs: Outputs to return; None or empty for all.
            timeout_s: Deadline in seconds; None for the client's.

        Returns:
            Arrays by output name, of the dtypes that the signature names.
            Strings are object arrays of bytes.

        Raises:
            ConfigurationError: A timeout that is none.
            DeadlineExceededError: No answer in time.
            InvalidInputError: An input is missing, unknown, or of another dtype
                or shape.
            InvalidModelSpecError: No model name, a bad version or label.
            ModelNotFoundError: Unknown model or version.
            SignatureNotFoundError: Unknown signature.
            UnavailableError: The server cannot be reached or is not ready, or
                this client was closed.
            ModelyardError: Any other failure, by its class.
        """
        if not isinstance(signature, str):
            raise ConfigurationError(f"Expected the name of a signature; received {signature!r}.")
        call = PredictCall(
            target=make_target(model, version, label),
            inputs=inputs,
            signature=signature,
            outputs=(outputs,) if isinstance(outputs, str) else tuple(outputs or ()),
        )
        return self._run(self._protocol.predict(call), timeout_s)

    def metadata(
        self, model: str, *, version: int | None = None, label: str | None = None, timeout_s: float | None = None
    ) -> ModelMetadata:
        """Describes a model's signatures.

        Args:
            model: Name of the model.
            version: A version; None for the newest.
            label: A version label instead of a version.
            timeout_s: Deadline in seconds; None for the client's.

        Raises:
            ModelyardError: As :meth:`predict`.
        """
        return self._run(self._protocol.metadata(make_target(model, version, label)), timeout_s)

    def status(self, model: str, *, version: int | None = None, timeout_s: float | None = None) -> ModelStatus:
        """States of a model's versions.

        Args:
            model: Name of the model.
            version: One version; None for all.
            timeout_s: Deadline in seconds; None for the client's.

        Raises:
            ModelyardError: As :meth:`predict`.
        """
        return self._run(self._protocol.status(make_target(model, version)), timeout_s)

    def wait_ready(self, model: str, timeout_s: float | None = None, *, version: int | None = None) -> ModelStatus:
        """Waits until a version can answer; a server that is not up yet is waited for, too.

        Args:
            model: Name of the model.
            timeout_s: Seconds until it gives up; None for the client's deadline.
            version: The version to wait for; None for any.

        Raises:
            DeadlineExceededError: Not ready in time; the message says why.
            ModelyardError: As :meth:`predict`, for failures that time does not cure.
        """
        limit = self._options.timeout_s if timeout_s is None else timeout_s
        _check_timeout(limit)
        # The flow keeps the time itself, to say at the end what the server said last.
        return self._run(self._protocol.wait_ready(make_target(model, version), limit), limit + 60.0)

    def close(self) -> None:
        """Closes the connections; a second call does nothing."""
        self._closed = True
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._url!r}{', closed' if self._closed else ''})"

    def _run(self, flow: Flow[_T], timeout_s: float | None) -> _T:
        timeout_s = self._options.timeout_s if timeout_s is None else timeout_s
        _check_timeout(timeout_s)
        deadline = time.monotonic() + timeout_s
        try:
            step = next(flow)
            while True:
                try:
                    answer = self._step(step, deadline, timeout_s)
                except ModelyardError as exc:
                    step = flow.throw(exc)
                else:
                    step = flow.send(answer)
        except StopIteration as stop:
            result: _T = stop.value
            return result

    def _step(self, step: Call | Pause, deadline: float, timeout_s: float) -> bytes:
        if self._closed:
            raise UnavailableError(f"This client of {self._url} was closed; connect again.")
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return b""
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceededError(f"{self._url}: no answer within {timeout_s:g} s.")
        return self._transport.send(step, left if step.at_most_s is None else min(left, step.at_most_s))


def _check_timeout(timeout_s: float) -> None:
    if not (isinstance(timeout_s, (int, float)) and math.isfinite(timeout_s) and timeout_s > 0):
        raise ConfigurationError(f"Expected a timeout in seconds, more than 0; received {timeout_s!r}.")
