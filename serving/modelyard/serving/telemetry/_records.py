"""Requests that were answered, as logs and traces see them."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import grpc

#: gRPC's names by their numbers.
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}
#: Codes that are the server's fault, by OpenTelemetry's conventions for gRPC.
_FAULTS = frozenset(("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"))


# Some thousand a second: a tuple costs a tenth of a frozen dataclass, and is as constant.
class RequestRecord(NamedTuple):
    """One request that was answered, or that nobody waited for any more.

    The native core makes tuples of these fields, in this order.

    Attributes:
        time_ns: When it came, in nanoseconds since 1970.
        api: ``grpc`` or ``rest``.
        method: HTTP's.
        path: Of the URL, without the query; of a gRPC method.
        status: HTTP's status, or gRPC's code.
        request_id: The caller's, or the server's where it gave none.
        traceparent: The caller's trace context (W3C); empty for none.
        client: The caller's address; ``unix`` for a UNIX socket.
        principal: Who asked, where callers have names.
        model: As the request names it.
        version: The version that answered; 0 for none.
        signature: Its signature.
        backend: What computed it.
        rows: Rows (examples) of the request.
        bytes_in: Of its body, as it came.
        bytes_out: Of the answer's body.
        total_ns: Nanoseconds from its head to the answer's last byte.
        receive_ns: Of these, until its inputs were read and decoded.
        queue_ns: Until its batch was begun.
        stack_ns: From there until the model was called.
        compute_ns: In the model.
        batch_ns: In the batch: both, and what came after.
        write_ns: From the end of the batch.
        batch: Number of the batch; 0 for none.
        batch_rows: Its rows, those that pad it included.
        batch_requests: Requests in it.
        logged: It is one of the access log's share.
        traced: It may be one of those that are traced.
    """

    time_ns: int
    api: str
    method: str
    path: str
    status: int
    request_id: str
    traceparent: str
    client: str
    principal: str
    model: str
    version: int
    signature: str
    backend: str
    rows: int
    bytes_in: int
    bytes_out: int
    total_ns: int
    receive_ns: int
    queue_ns: int
    stack_ns: int
    compute_ns: int
    batch_ns: int
    write_ns: int
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
        parts = self.traceparent.split("-")
        return parts[1] if len(parts) >= 4 else ""


def _ms(ns: int) -> float:
    return round(ns / 1e6, 3)


def _time(record: RequestRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.time_ns / 1e9, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of the logs of requests.

    Attributes:
        name: In JSON, and in text.
        what: What it says.
        value: Takes it from a record.
        always: It is there where it is empty, too.
    """

    name: str
    what: str
    value: Callable[[RequestRecord], str | int | float]
    always: bool = False


#: The access log, the slow-request log and the page on operating are made from this table.
FIELDS: tuple[Field, ...] = (
    Field(name="time", what="when the request came, UTC", value=_time, always=True),
    Field(name="api", what="`grpc` or `rest`", value=lambda record: record.api, always=True),
    Field(name="method", what="HTTP's method; `POST` for gRPC", value=lambda record: record.method, always=True),
    Field(name="path", what="path of the URL, or of the gRPC method; cut after 256 bytes; never the query",
          value=lambda record: record.path, always=True),
    Field(name="status", what="HTTP's status, such as `200`, or gRPC's code, such as `OK`; `499` or `CANCELLED` where "
          "the caller had gone", value=lambda record: record.status_text, always=True),
    Field(name="total_ms", what="milliseconds from the request's head to the answer's last byte",
          value=lambda record: _ms(record.total_ns), always=True),
    Field(name="request_id", what="`x-request-id`: the caller's, or one that the server made",
          value=lambda record: record.request_id, always=True),
    Field(name="trace_id", what="of the caller's `traceparent`", value=lambda record: record.trace_id),
    Field(name="client", what="IP address of the caller; `unix` for a UNIX socket",
          value=lambda record: record.client),
    Field(name="principal", what="who the caller is, where it said so by a key, a token or a certificate",
          value=lambda record: record.principal),
    Field(name="model", what="as the request names it", value=lambda record: record.model),
    Field(name="version", what="the version that answered", value=lambda record: record.version),
    Field(name="signature", what="its signature", value=lambda record: record.signature),
    Field(name="backend", what="the runtime that computed it", value=lambda record: record.backend),
    Field(name="rows", what="rows (examples) of the request", value=lambda record: record.rows),
    Field(name="bytes_in", what="bytes of the request's body, as they came", value=lambda record: record.bytes_in),
    Field(name="bytes_out", what="bytes of the answer's body", value=lambda record: record.bytes_out),
    Field(name="receive_ms", what="milliseconds until the inputs were read and decoded",
          value=lambda record: _ms(record.receive_ns)),
    Field(name="queue_ms", what="milliseconds from there until the batch was begun",
          value=lambda record: _ms(record.queue_ns)),
    Field(name="batch_ms", what="milliseconds of the batch, all its requests together",
          value=lambda record: _ms(record.batch_ns)),
    Field(name="compute_ms", what="of these, milliseconds in the model",
          value=lambda record: _ms(record.compute_ns)),
    Field(name="write_ms", what="milliseconds from the end of the batch until the connection has taken the answer",
          value=lambda record: _ms(record.write_ns)),
    Field(name="batch_rows", what="rows of the batch, those that pad it included",
          value=lambda record: record.batch_rows),
    Field(name="batch_requests", what="requests that shared the batch", value=lambda record: record.batch_requests),
)  # fmt: skip
