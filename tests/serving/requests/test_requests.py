"""Request ids: which are taken, and that the log names them where something fails."""

from __future__ import annotations

import json

import pytest

from modelyard.serving.handlers.rest import error_answer
from modelyard.serving.requests import Caller, RequestContext, current_request, new_request_id, request_id_of
from modelyard.serving.transports.grpc import failure_of


@pytest.mark.parametrize("value", [b"a", b"0af7651916cd43dd-b7ad6b7169203331", b"~" * 128])
def test_ids(value: bytes) -> None:
    assert request_id_of(value) == value.decode()


@pytest.mark.parametrize("value", [b"", b"a" * 129, b"a b", b"a\r\nb: c", b"a\n", b"\xc3\xa4", b"a\0"])
def test_what_is_none(value: bytes) -> None:
    assert request_id_of(value) == ""


def test_the_log_and_the_answer_name_the_caller_s_id(caplog: pytest.LogCaptureFixture) -> None:
    answer = error_answer(RuntimeError("secret"), "GET /", caller=Caller(request_id="mine"))
    before = current_request.set(RequestContext(request_id="yours"))
    code, text = failure_of(RuntimeError("secret"), "/Predict")
    current_request.reset(before)
    assert [record.getMessage() for record in caplog.records] == [
        "request mine: GET / failed unexpectedly",
        "request yours: /Predict failed unexpectedly",
    ]
    assert (answer.status, code) == (500, "INTERNAL")
    for message, name in ((json.loads(answer.body)["error"], "mine"), (text, "yours")):
        assert message == f"Internal error. The server's log has the details under request {name}."


def test_made_ids_are_ids_and_all_different() -> None:
    made = {new_request_id() for _ in range(100)}
    assert len(made) == 100
    assert all(request_id_of(each.encode()) == each for each in made)
