"""What a prediction is, with no protocol in it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt

from modelyard.artifact import DEFAULT_SIGNATURE, Signature
from modelyard.errors import DeadlineExceededError, ModelyardError, RequestCancelledError
from modelyard.serving.requests._context import Facts

Arrays = Mapping[str, npt.NDArray[Any]]


def size_of(arrays: Arrays) -> int:
    """The bytes of some arrays, with those of their strings."""
    sizes = (
        sum(map(len, array.ravel().tolist())) if array.dtype == object else array.nbytes for array in arrays.values()
    )
    return sum(sizes)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """Which servable and signature a request means.

    Attributes:
        name: The model.
        version: A version; None for the newest loaded one, or the label's.
        label: A version label, instead of a version.
        signature: A signature; empty means ``serving_default``.
    """

    name: str
    version: int | None = None
    label: str | None = None
    signature: str = ""

    @property
    def signature_name(self) -> str:
        """The signature's name, resolved."""
        return self.signature or DEFAULT_SIGNATURE

    def describe(self) -> str:
        """The spec as error messages quote it, in TensorFlow Serving's words."""
        return f"Latest({self.name})" if self.version is None else f"Specific({self.name}, {self.version})"


#: The header, and the key of gRPC metadata, whose value ``low`` lets all others go first.
PRIORITY_KEY = "x-modelyard-priority"
#: The header, and the key of gRPC metadata, by which callers find their requests again: answers repeat it, and so does
#: the log of failures.
REQUEST_ID = "x-request-id"
#: Longer ones, and what would need an escape somewhere, are ignored.
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
#: Later versions of W3C Trace Context may add fields behind the flags.
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})(?:-.*)?")
#: Header fields that are different in every call, and that nothing here depends on.
FIELDS_OF_ONE_CALL = frozenset((b"x-request-id", b"traceparent", b"tracestate"))


#: Who waits for what this thread computes, for a batch scheduler that the computing goes through.
current_caller: ContextVar[Caller | None] = ContextVar("current_caller", default=None)


def request_id_of(value: bytes) -> str:
    """The request id in the header's value; empty for one that cannot be repeated as it is."""
    return value.decode("ascii") if _REQUEST_ID.fullmatch(value) else ""


def _no_header(_: str) -> str:
    return ""


class TraceParent(NamedTuple):
    """A caller's trace context."""

    trace_id: str
    recorded: bool


def trace_parent_of(text: str) -> TraceParent | None:
    """Parses the header ``traceparent`` (W3C Trace Context); None where it is absent or malformed."""
    match = _TRACEPARENT.fullmatch(text)
    return None if match is None else TraceParent(match[1], bool(int(match[2], 16) & 1))


def trace_id_of(traceparent: str) -> str:
    """The id of a trace that is recorded, by the header ``traceparent``; empty for none."""
    parent = trace_parent_of(traceparent)
    return parent.trace_id if parent is not None and parent.recorded else ""


# Made for every call: a frozen dataclass would set each of its attributes by a call.
@dataclass(kw_only=True, slots=True, eq=False)
class Caller:
    """The caller of a request, and how long it waits: work that no caller waits for is not done."""

    #: ``time.monotonic()`` after which the answer is of no use; None for never.
    deadline: float | None = None
    #: Asks the transport whether the caller has hung up; None where it says so by :meth:`leave`.
    gone: Callable[[], bool] | None = None
    low_priority: bool = False
    #: Looks a header field, or a key of gRPC metadata, up by its lower-case name; empty where there is none.
    header: Callable[[str], str] = _no_header
    #: Who it is, by its credentials; empty for anybody.
    principal: str = ""
    #: Called with the request's rows; None where there are no quotas.
    charge: Callable[[int], None] | None = None
    request_id: str = "-"
    #: What is learned of the request, for records; None where it is not recorded.
    facts: Facts | None = None
    #: Whether the transport has chosen the request for the log of predictions; None where it has not drawn.
    logged: bool | None = None
    #: The number, from 0 to 1, that the transport has drawn for traffic rules; None where it has not.
    drawn: float | None = None
    #: ``time.monotonic()`` when it hung up, or its time was over; None before.
    left_at: float | None = None
    #: Whether its request has been let in: it has a place among those that wait.
    let_in: bool = False
    #: Called with the reason where it is answered though what computes for it has not ended; None where nobody asks.
    given_up: Callable[[ModelyardError], None] | None = None

    def leave(self) -> None:
        """The caller has hung up, or its time is over."""
        if self.left_at is None:
            self.left_at = time.monotonic()

    @property
    def late(self) -> bool:
        """Whether its deadline has passed, and had before it left."""
        if self.deadline is None:
            return False
        return (time.monotonic() if self.left_at is None else self.left_at) > self.deadline

    def refusal(self) -> ModelyardError | None:
        """Why the request should not be computed any more; None where it should."""
        if self.late:
            return DeadlineExceededError("The deadline passed before the request was computed.")
        if self.left_at is not None or (self.gone is not None and self.gone()):
            return RequestCancelledError("The caller went away before the request was computed.")
        return None


# As above.
@dataclass(kw_only=True, slots=True)
class PredictRequest:
    """One prediction.

    Attributes:
        spec: Which servable and signature.
        inputs: Called with the signature once it is resolved, where the prediction is computed, so that transports
            decode a large body off the event loop and with the dtypes of the very version that will answer.
        output_filter: Outputs to return; empty for all.
        small: The body is small, so that decoding it takes no time to speak of.
        caller: Who waits for the answer; None for a caller that always waits.
        size: Bytes of the body, by which it is guessed what the request will cost; 0 where the transport does not say.
        names: The inputs that were sent, for errors where ``inputs`` refuses them; None where it takes any.
    """

    spec: ModelSpec
    inputs: Callable[[Signature], Arrays]
    output_filter: tuple[str, ...] = ()
    small: bool = False
    caller: Caller | None = None
    size: int = 0
    names: Callable[[], Iterable[str]] | None = None


# As above.
@dataclass(kw_only=True, slots=True)
class Prediction:
    """The answer to a :class:`PredictRequest`.

    Attributes:
        spec: The request's spec with version and signature filled in.
        outputs: Arrays by output name.
    """

    spec: ModelSpec
    outputs: Arrays
