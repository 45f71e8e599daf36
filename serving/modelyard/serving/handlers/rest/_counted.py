"""Requests of both REST APIs in the metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from modelyard.errors import ModelyardError
from modelyard.serving.metrics import Metrics
from modelyard.serving.requests import trace_id_of
from modelyard.serving.transports.http import HttpRequest
from modelyard.wire import grpc_status_of


@contextmanager
def counted(metrics: Metrics, request: HttpRequest, *, model: str, api: str) -> Iterator[None]:
    """Counts one request, whatever becomes of it; first of all the problem that its transport found.

    Args:
        metrics: Where.
        request: The request.
        model: The model asked for.
        api: What its latency is recorded under.

    Raises:
        ModelyardError: The request's problem.
    """
    started = time.perf_counter()
    code = "OK"
    try:
        if request.problem is not None:
            raise request.problem
        yield
    except ModelyardError as exc:
        code = grpc_status_of(exc)
        raise
    except asyncio.CancelledError:
        code = "CANCELLED"
        raise
    except Exception:
        code = "INTERNAL"
        raise
    finally:
        seconds = time.perf_counter() - started
        trace = trace_id_of(request.headers.get("traceparent", ""))
        client = "" if request.caller is None else request.caller.principal
        metrics.record_request(
            model, api=api, entrypoint="REST", status=code, seconds=seconds, trace=trace, client=client
        )
