"""A client span for each operation, in programs that trace: OpenTelemetry's API is no dependency."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from modelyard.clients.protocols import Call

_TRACE, _PROPAGATE = "opentelemetry.trace", "opentelemetry.propagate"


class CallSpan:
    """The span of an operation; nothing, in a program that does not trace."""

    __slots__ = ("_model", "_named", "_span", "headers")

    def __init__(self, call: Call, model: str, request_id: str) -> None:
        #: What goes with every call, so that the server's span is a child of this one.
        self.headers: tuple[tuple[str, str], ...] = ()
        self._span: Any = None
        self._model = model
        self._named = not call.preparing
        # A program that traces has imported the API already; the others need not pay for the import.
        if _TRACE not in sys.modules:
            return
        trace: Any = importlib.import_module(_TRACE)
        propagate: Any = importlib.import_module(_PROPAGATE)
        attributes = {"modelyard.model": model, "modelyard.request_id": request_id}
        self._span = trace.get_tracer("modelyard.clients").start_span(
            _name(call, model),
            kind=trace.SpanKind.CLIENT,
            attributes={key: text for key, text in attributes.items() if text},
        )
        carrier: dict[str, str] = {}
        # Without an SDK there is no span of ours. Before 1.37, what stands for it does not have the caller's context.
        own = self._span.get_span_context().is_valid
        propagate.inject(carrier, trace.set_span_in_context(self._span) if own else None)
        self.headers = tuple((name.lower(), value) for name, value in carrier.items())

    def name_after(self, call: Call) -> None:
        """Names the span after the operation's own call, where it began with one that asks for metadata."""
        if self._span is not None and not self._named and not call.preparing:
            self._named = True
            self._span.update_name(_name(call, self._model))

    def end(self, error: BaseException | None) -> None:
        if self._span is None:
            return
        if error is not None:
            trace: Any = importlib.import_module(_TRACE)
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))
        self._span.end()


def _name(call: Call, model: str) -> str:
    """A name of which there are few: without the model's."""
    if not call.path.startswith(("/v1", "/v2")):
        return call.path.lstrip("/")
    path = call.path.replace(f"/models/{model}", "/models/{model}") if model else call.path
    return f"{'GET' if call.body is None else 'POST'} {path}"
