"""Deadlines of gRPC's callers, frame by frame."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from modelyard.wire import array_to_tensor, serving_pb2
from tests.serving.core.conftest import Batch, Started, same
from tests.serving.core.frames import DATA, HEADERS, PREFACE, RST_STREAM, STREAM, call_head, fields_of, frame, frames
from tests.serving.core.test_limits import connected, serving
from tests.support.server import free_port
from tests.support.waiting import until

_PREDICT = "/tensorflow.serving.PredictionService/Predict"


def test_a_stream_without_a_message_keeps_its_deadline() -> None:
    head = call_head(("grpc-timeout", "300m"), path=STREAM)
    with serving() as ports, connected(ports.grpc, PREFACE + head) as connection:
        started = time.monotonic()
        frames(connection, HEADERS)
        assert fields_of(connection)["grpc-status"] == "4"
        assert 0.2 < time.monotonic() - started < 10
        assert not ports.handlers.streams


# https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md: at most eight digits, and a unit.
@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2H", 7200), ("3M", 180), ("40S", 40), ("50000m", 50), ("60000000u", 60), ("99999999S", 99999999), ("S", None),
     ("123456789S", None), ("-5S", None), ("5s", None)],
)  # fmt: skip
def test_a_timeout_is_read_in_its_unit(text: str, seconds: float | None) -> None:
    head = call_head(("grpc-timeout", text), path=STREAM)
    with serving() as ports, connected(ports.grpc, PREFACE + head + frame(DATA, 0, b"\0\0\0\0\0", stream=1)):
        until(lambda: ports.handlers.streams)
        left = ports.handlers.streams[0].timeout_s
        assert left == (None if seconds is None else pytest.approx(seconds, abs=5))


# Clients have their own clocks: one that goes when nearly all of its time is over did not wait for longer.
@pytest.mark.parametrize(
    ("timeout", "goes_s", "status"), [("2S", 1.95, "DEADLINE_EXCEEDED"), ("20S", 0.2, "CANCELLED")]
)
def test_a_call_that_its_client_ends_is_counted_as_late_or_cancelled(
    started: Started, timeout: str, goes_s: float, status: str
) -> None:
    gate, port = threading.Event(), free_port()

    def wait(batch: Batch, waited: object) -> Any:
        gate.wait(30)
        return same(batch)

    started.core.set_methods({_PREDICT: False})
    started.core.listen(grpc=True, port=port)
    started.plan(wait, ("y", "float32"))
    request = serving_pb2.PredictRequest(inputs={"x": array_to_tensor(np.ones(1, np.float32))})
    request.model_spec.name = "m"
    message = request.SerializeToString()
    head = call_head(("grpc-timeout", timeout), path=_PREDICT)
    with connected(port, PREFACE + head + frame(DATA, 1, b"\0" + len(message).to_bytes(4) + message)) as connection:
        begun = time.monotonic()
        until(lambda: started.core.waiting == 1)
        time.sleep(begun + goes_s - time.monotonic())
        connection.sendall(frame(RST_STREAM, 0, b"\0\0\0\x08"))
        until(lambda: started.core.waiting == 0)
        gate.set()
    (found,) = started.core.take_statistics()
    assert found["failed"] == [("Predict", "GRPC", status, 1)]
