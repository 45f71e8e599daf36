"""What each operation sends and does with the answers, with no I/O in it.

An operation is a generator: it yields a :class:`Call` (or a :class:`Pause`),
receives the answer's bytes, and returns the result. The client that drives it
decides how bytes travel and how time passes, so that blocking and asynchronous
clients share every rule in here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from modelyard.clients import _requests, _responses
from modelyard.clients._inputs import check_inputs, check_outputs, needs_signature, to_arrays
from modelyard.clients._requests import DEFAULT_SIGNATURE, Target
from modelyard.clients._results import ModelMetadata, ModelStatus, Prediction, SignatureInfo
from modelyard.errors import DeadlineExceededError, ModelNotFoundError, ProtocolError, UnavailableError
from modelyard.wire import MODEL_SERVICE, PREDICTION_SERVICE

_T = TypeVar("_T")

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_LONGEST_POLL_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Call:
    """One exchange with the server.

    Attributes:
        path: gRPC method, or path of the URL.
        body: What is sent; None for a REST GET.
        at_most_s: Seconds after which this one exchange counts as failed, where
            that is sooner than the operation's deadline.
    """

    path: str
    body: bytes | None
    at_most_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Time to let pass.

    Attributes:
        seconds: How much.
    """

    seconds: float


Flow = Generator[Call | Pause, bytes, _T]


@dataclass(frozen=True, kw_only=True)
class PredictCall:
    """The arguments of a predict.

    Attributes:
        target: Which servable.
        inputs: As the caller gave them.
        signature: Name of the signature; empty for the default.
        outputs: Outputs to return; empty for all.
    """

    target: Target
    inputs: Mapping[str, Any]
    signature: str
    outputs: tuple[str, ...]


class Protocol(ABC):
    """The operations over one protocol.

    Args:
        metadata_ttl_s: Seconds for which metadata of a moving target (the
            newest version, a label) is believed; that of a version never changes.
    """

    def __init__(self, *, metadata_ttl_s: float) -> None:
        self._ttl_s = metadata_ttl_s
        self._cache: dict[Target, tuple[float, ModelMetadata]] = {}

    @abstractmethod
    def predict(self, call: PredictCall) -> Flow[Prediction]:
        """Computes outputs.

        Args:
            call: The arguments.
        """

    @abstractmethod
    def metadata(self, target: Target) -> Flow[ModelMetadata]:
        """Describes a model's signatures, fresh from the server.

        Args:
            target: Which servable.
        """

    @abstractmethod
    def status(self, target: Target, at_most_s: float | None = None) -> Flow[ModelStatus]:
        """States of a model's versions.

        Args:
            target: Which servable.
            at_most_s: See :class:`Call`.
        """

    def wait_ready(self, target: Target, timeout_s: float) -> Flow[ModelStatus]:
        """Asks for the status until a version is available.

        Args:
            target: Which servable.
            timeout_s: When to give up.

        Raises:
            DeadlineExceededError: Not available in time; the message says what
                the server said last.
        """
        deadline = time.monotonic() + timeout_s
        pause = _FIRST_PAUSE_S
        last = "the server was not asked yet"
        while (left := deadline - time.monotonic()) > 0:
            try:
                status = yield from self.status(target, min(left, _LONGEST_POLL_S))
                if status.available:
                    return status
                states = [f"version {row.version} {row.state} {row.error_message}".rstrip() for row in status.versions]
                last = ", ".join(states) or "no versions"
            # Anything else (a wrong name of a host is UNAVAILABLE too) is not cured by waiting.
            except (UnavailableError, ModelNotFoundError, DeadlineExceededError) as exc:
                last = exc.message
            yield Pause(seconds=min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        raise DeadlineExceededError(f"Model {target.model!r} was not ready after {timeout_s:g} s: {last}")

    def _signature(self, target: Target, name: str, *, fresh: bool = False) -> Flow[SignatureInfo | None]:
        """A signature from the cache or the server; None where the model has none of that name."""
        found = self._cache.get(target)
        now = time.monotonic()
        if fresh or found is None or (target.version is None and now - found[0] > self._ttl_s):
            metadata = yield from self.metadata(target)
            found = (now, metadata)
            self._cache[target] = found
        return found[1].signatures.get(name or DEFAULT_SIGNATURE)


class GrpcProtocol(Protocol):
    """TensorFlow Serving's gRPC services."""

    def predict(self, call: PredictCall) -> Flow[Prediction]:
        """Computes outputs.

        Args:
            call: The arguments.
        """
        signature = None
        if needs_signature(call.inputs):
            signature = yield from self._signature(call.target, call.signature)
        arrays = to_arrays(call.inputs, signature)
        body = _requests.predict_message(call.target, call.signature, arrays, call.outputs)
        data = yield Call(path=PREDICTION_SERVICE["Predict"].path, body=body)
        return _responses.prediction_from_message(data, call.target, call.signature)

    def metadata(self, target: Target) -> Flow[ModelMetadata]:
        """Describes a model's signatures, fresh from the server.

        Args:
            target: Which servable.
        """
        path = PREDICTION_SERVICE["GetModelMetadata"].path
        data = yield Call(path=path, body=_requests.metadata_message(target))
        return _responses.metadata_from_message(data, target)

    def status(self, target: Target, at_most_s: float | None = None) -> Flow[ModelStatus]:
        """States of a model's versions.

        Args:
            target: Which servable.
            at_most_s: See :class:`Call`.
        """
        path = MODEL_SERVICE["GetModelStatus"].path
        data = yield Call(path=path, body=_requests.status_message(target), at_most_s=at_most_s)
        return _responses.status_from_message(data, target)


class RestProtocol(Protocol):
    """TensorFlow Serving's REST API, version 1."""

    def predict(self, call: PredictCall) -> Flow[Prediction]:
        """Computes outputs.

        Args:
            call: The arguments.
        """
        signature = yield from self._signature(call.target, call.signature)
        arrays = to_arrays(call.inputs, signature)
        if signature is not None:
            check_inputs(arrays, signature)
            check_outputs(call.outputs, signature)
        body = _requests.predict_json(call.signature, arrays)
        data = yield Call(path=f"{_requests.model_path(call.target)}:predict", body=body)
        if signature is not None:
            try:
                return _responses.prediction_from_json(data, call.target, signature, call.outputs)
            except ProtocolError:
                if call.target.version is not None:
                    raise
        # A newer version than the one described may have answered: look once more before giving up.
        signature = yield from self._signature(call.target, call.signature, fresh=True)
        if signature is None:
            raise ProtocolError(
                f"The server answered for signature {call.signature or DEFAULT_SIGNATURE!r}, which its metadata lacks."
            )
        return _responses.prediction_from_json(data, call.target, signature, call.outputs)

    def metadata(self, target: Target) -> Flow[ModelMetadata]:
        """Describes a model's signatures, fresh from the server.

        Args:
            target: Which servable.
        """
        data = yield Call(path=f"{_requests.model_path(target)}/metadata", body=None)
        return _responses.metadata_from_json(data, target)

    def status(self, target: Target, at_most_s: float | None = None) -> Flow[ModelStatus]:
        """States of a model's versions.

        Args:
            target: Which servable.
            at_most_s: See :class:`Call`.
        """
        data = yield Call(path=_requests.model_path(target), body=None, at_most_s=at_most_s)
        return _responses.status_from_json(data, target)
