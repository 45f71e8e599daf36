"""Spans, made of records: OpenTelemetry's SDK sends them, as its environment variables say."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modelyard.errors import ConfigurationError
from modelyard.serving.telemetry._records import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Link, Span

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_SERVICE = "OTEL_SERVICE_NAME"
#: How long a batch's span waits for the requests that it is linked to: those not traced never come.
_BATCH_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Tracing:
    """How spans are made and sent."""

    provider: TracerProvider
    parents_decide: bool


def tracing_of(environment: Mapping[str, str]) -> Tracing | None:
    """Tracing by the environment; None where it names no endpoint, disables the SDK, or its exporter is none."""
    asked = environment.get("OTEL_TRACES_EXPORTER", "")
    endpoint = next((environment[name] for name in _ENDPOINTS if environment.get(name)), "")
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if disabled or asked == "none" or not (asked or endpoint):
        return None
    if asked not in ("", "otlp"):
        raise ConfigurationError(f"OTEL_TRACES_EXPORTER={asked}; expected otlp or none.")
    sampler = environment.get("OTEL_TRACES_SAMPLER") or "parentbased_always_on"
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _exporter(environment)
    except ModuleNotFoundError as exc:
        if not (exc.name or "").startswith("opentelemetry"):
            raise
        cause = "OTEL_TRACES_EXPORTER" if asked else f"an endpoint, {endpoint}"
        raise ConfigurationError(
            f"OpenTelemetry's variables ask for traces ({cause}), and {exc.name} is not installed: "
            'pip install "modelyard[tracing]", or set OTEL_SDK_DISABLED=true.'
        ) from exc
    # The SDK itself reads name, attributes, sampler, limits and the exporter's own variables.
    named = _SERVICE in environment or "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {"service.name": "modelyard"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider=provider, parents_decide=sampler.startswith("parentbased_"))


def _exporter(environment: Mapping[str, str]) -> SpanExporter:
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next((environment[name] for name in names if environment.get(name)), "http/protobuf")
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as http

        return http.OTLPSpanExporter()
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc

        return grpc.OTLPSpanExporter()
    raise ConfigurationError(f"{names[1]}={protocol}; expected http/protobuf or grpc.")


@dataclass(kw_only=True)
class _OpenBatch:
    """A batch whose span is not ended: more of its requests may come."""

    span: Span
    missing: int
    end_ns: int
    since: float = field(default_factory=time.monotonic)


class Spans:
    """A server span for each traced request, and one for each batch.

    A request's span has children for what its time went to: receive, queue, compute and write. A batch is computed once
    for all its requests: its span is in the trace of the first of them, and linked to all.
    """

    def __init__(self, tracing: Tracing) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._provider = tracing.provider
        self._tracer = tracing.provider.get_tracer("modelyard.serving")
        self._propagator = TraceContextTextMapPropagator()
        self._batches: dict[int, _OpenBatch] = {}

    def write(self, records: Sequence[RequestRecord]) -> None:
        for record in records:
            if record.traced:
                self._request(record)
        self._end_batches(older_than_s=_BATCH_S)

    def close(self) -> None:
        """Sends what was not sent yet."""
        self._end_batches(older_than_s=0.0)
        self._provider.shutdown()

    def _request(self, record: RequestRecord) -> None:
        trace = self._trace
        parent = self._propagator.extract({"traceparent": record.traceparent})
        name = record.path.lstrip("/") if record.api == "grpc" else f"{record.method} {_route(record)}"
        span = self._tracer.start_span(
            name, parent, trace.SpanKind.SERVER, attributes=_attributes(record), start_time=record.time_ns
        )
        if not span.is_recording():
            return
        if record.is_fault:
            span.set_status(trace.Status(trace.StatusCode.ERROR))
        inside = trace.set_span_in_context(span)
        came = record.time_ns
        decoded = came + record.receive_ns
        self._child("receive", inside, came, decoded)
        if record.batch_ns:
            begun = decoded + record.queue_ns
            called, ended = begun + record.stack_ns, begun + record.batch_ns
            self._child("queue", inside, decoded, begun)
            links = self._batch(record, span, inside, begun, ended)
            self._child("compute", inside, called, called + record.compute_ns, links=links)
            self._child("write", inside, ended, ended + record.write_ns)
        span.end(record.time_ns + record.total_ns)

    def _child(self, name: str, inside: Context, start_ns: int, end_ns: int, *, links: Sequence[Link] = ()) -> None:
        self._tracer.start_span(name, inside, links=links, start_time=start_ns).end(max(start_ns, end_ns))

    def _batch(
        self, record: RequestRecord, span: Span, inside: Context, begun_ns: int, ended_ns: int
    ) -> Sequence[Link]:
        """Links the span of a request's batch to the request; returns the link the other way."""
        if not record.batch:
            return ()
        batch = self._batches.get(record.batch)
        if batch is None:
            attributes: dict[str, str | int] = {
                "modelyard.model": record.model,
                "modelyard.version": record.version,
                "modelyard.backend": record.backend,
                "modelyard.batch.rows": record.batch_rows,
                "modelyard.batch.requests": record.batch_requests,
            }
            opened = self._tracer.start_span("batch", inside, attributes=attributes, start_time=begun_ns)
            batch = _OpenBatch(span=opened, missing=record.batch_requests, end_ns=ended_ns)
            self._batches[record.batch] = batch
        batch.span.add_link(span.get_span_context())
        batch.missing -= 1
        if not batch.missing:
            batch.span.end(batch.end_ns)
            del self._batches[record.batch]
        return (self._trace.Link(batch.span.get_span_context()),)

    def _end_batches(self, *, older_than_s: float) -> None:
        now = time.monotonic()
        for number, batch in list(self._batches.items()):
            if now - batch.since >= older_than_s:
                batch.span.end(batch.end_ns)
                del self._batches[number]


def _route(record: RequestRecord) -> str:
    """A path with a place for the model's name: names of spans must be few (OpenTelemetry's conventions for HTTP)."""
    parts = record.path.split("/")
    if len(parts) > 3 and parts[1] in ("v1", "v2") and parts[2] == "models":
        parts[3] = "{model}" + "".join(parts[3].partition(":")[1:])
        if len(parts) > 5 and parts[4] in ("versions", "labels"):
            parts[5] = "{version}" + "".join(parts[5].partition(":")[1:])
        return "/".join(parts[:7])
    # Callers may send any path.
    return record.path if record.status < 400 else ""


def _attributes(record: RequestRecord) -> dict[str, str | int]:
    if record.api == "grpc":
        service, _, method = record.path.lstrip("/").rpartition("/")
        attributes: dict[str, str | int] = {
            "rpc.system": "grpc", "rpc.service": service, "rpc.method": method, "rpc.grpc.status_code": record.status,
        }  # fmt: skip
    else:
        attributes = {
            "http.request.method": record.method, "url.path": record.path, "http.response.status_code": record.status,
        }  # fmt: skip
    more: dict[str, str | int] = {
        "client.address": record.client,
        "enduser.id": record.principal,
        "modelyard.request_id": record.request_id,
        "modelyard.model": record.model,
        "modelyard.version": record.version,
        "modelyard.signature": record.signature,
        "modelyard.backend": record.backend,
        "modelyard.rows": record.rows,
        "modelyard.bytes_in": record.bytes_in,
        "modelyard.bytes_out": record.bytes_out,
    }
    return attributes | {name: value for name, value in more.items() if value}
