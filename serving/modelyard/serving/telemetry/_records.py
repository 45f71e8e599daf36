"""Requests that were answered, as logs and traces see them."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import grpc

from modelyard.serving.requests import trace_parent_of

#: gRPC's names by their numbers.
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}
#: Codes that are the server's fault, by OpenTelemetry's conventions for gRPC.
_FAULTS = frozenset(("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"))


# Some thousand a second: a tuple costs a tenth of a frozen dataclass, and is as constant.
class RequestRecord(NamedTuple):
    """One request that was answered, or whose caller has gone.

    The native core makes tuples of these fields, in this order.
    """

    #: When it came, in nanoseconds since 1970.
    time_ns: int
    #: ``grpc`` or ``rest``.
    api: str
    method: str
    #: Of the URL, without the query; of a gRPC method.
    path: str
    status: int
    request_id: str
    #: The caller's trace context (W3C); empty for none.
    traceparent: str
    #: The caller's address; ``unix`` for a UNIX socket.
    client: str
    #: Who asked, where callers have names.
    principal: str
    model: str
    #: The version that answered; 0 for none.
    version: int
    signature: str
    backend: str
    rows: int
    bytes_in: int
    bytes_out: int
    #: Nanoseconds from its head to the answer's last byte.
    total_ns: int
    receive_ns: int
    queue_ns: int
    stack_ns: int
    compute_ns: int
    batch_ns: int
    write_ns: int
    #: Number of the batch; 0 for none.
    batch: int
    batch_rows: int
    batch_requests: int
    logged: bool
    traced: bool

    @property
    def status_text(self) -> str:
        """The status as logs have it: HTTP's number, gRPC's name."""
        return str(self.status) if self.api == "rest" else _CODES.get(self.status, str(self.status))

    @property
    def is_fault(self) -> bool:
        """Whether the server is to blame for how it ended."""
        return self.status >= 500 if self.api == "rest" else self.status_text in _FAULTS

    @property
    def trace_id(self) -> str:
        """Of the caller's trace; empty where it has none."""
        parent = trace_parent_of(self.traceparent)
        return "" if parent is None else parent.trace_id


def _time(record: RequestRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.time_ns / 1e9, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of the logs of requests."""

    name: str
    what: str
    #: Takes it from a record; None for the attribute of its name.
    value: Callable[[RequestRecord], str | int | float] | None = None
    #: It is there where it is empty, too.
    always: bool = False

    def of(self, record: RequestRecord) -> str | int | float:
        value: str | int | float = getattr(record, self.name) if self.value is None else self.value(record)
        return value


def _milliseconds(name: str, what: str, *, always: bool = False) -> Field:
    """A duration: the attribute of its name in nanoseconds."""
    attribute = f"{name}_ns"
    return Field(
        name=f"{name}_ms", what=what, value=lambda record: round(getattr(record, attribute) / 1e6, 3), always=always
    )


#: The access log, the slow-request log and the page on operating are made from this table.
FIELDS: tuple[Field, ...] = (
    Field(name="time", what="when the request came, UTC", value=_time, always=True),
    Field(name="api", what="`grpc` or `rest`", always=True),
    Field(name="method", what="HTTP's method; `POST` for gRPC", always=True),
    Field(name="path", what="path of the URL, or of the gRPC method; cut after 256 bytes; never the query",
          always=True),
    Field(name="status", what="HTTP's status, such as `200`, or gRPC's code, such as `OK`; `499` or `CANCELLED` where "
          "the caller had gone", value=lambda record: record.status_text, always=True),
    _milliseconds("total", "milliseconds from the request's head to the answer's last byte", always=True),
    Field(name="request_id", what="`x-request-id`: the caller's, or one that the server made", always=True),
    Field(name="trace_id", what="of the caller's `traceparent`"),
    Field(name="client", what="IP address of the caller; `unix` for a UNIX socket"),
    Field(name="principal", what="who the caller is, where it said so by a key, a token or a certificate"),
    Field(name="model", what="as the request names it"),
    Field(name="version", what="the version that answered"),
    Field(name="signature", what="its signature"),
    Field(name="backend", what="the runtime that computed it"),
    Field(name="rows", what="rows (examples) of the request"),
    Field(name="bytes_in", what="bytes of the request's body, as they came"),
    Field(name="bytes_out", what="bytes of the answer's body"),
    _milliseconds("receive", "milliseconds until the inputs were read and decoded"),
    _milliseconds("queue", "milliseconds from there until the batch was begun"),
    _milliseconds("batch", "milliseconds of the batch, all its requests together"),
    _milliseconds("compute", "of these, milliseconds in the model"),
    _milliseconds("write", "milliseconds from the end of the batch until the connection has taken the answer"),
    Field(name="batch_rows", what="rows of the batch, those that pad it included"),
    Field(name="batch_requests", what="requests that shared the batch"),
)  # fmt: skip
