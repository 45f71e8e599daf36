"""Request ids: which are taken, and that the log names them where something fails."""

from __future__ import annotations

import json

import numpy as np
import pytest

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import InvalidInputError
from modelyard.serving.handlers.rest import error_answer
from modelyard.serving.requests import (
    Caller,
    RequestContext,
    complete_inputs,
    current_request,
    new_request_id,
    request_id_of,
)
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


@pytest.mark.parametrize(("shape", "hint"), [((4, 3), r" One row alone is a batch of one, \[1,4,3\]\."), ((3, 4), "")])
def test_a_row_without_its_batch_is_told_how_to_be_sent(shape: tuple[int, ...], hint: str) -> None:
    signature = Signature(inputs=(TensorSpec(name="x", dtype="float32", shape=(-1, 4, 3)),), outputs=(), compute="g")
    with pytest.raises(InvalidInputError, match=rf"expected float32 \[-1,4,3\] \(-1 is any size\)\.{hint}$"):
        complete_inputs(signature, {"x": np.zeros(shape, np.float32)}, check_shapes=True, defaults={}, feed_name=str)
