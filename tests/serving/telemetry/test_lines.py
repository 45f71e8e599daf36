"""Lines of the logs."""

from __future__ import annotations

import io
import json
import logging
import re
import typing

import pytest

from modelyard.serving.telemetry import FIELDS, Recorder, RequestRecord, Wanted
from modelyard.serving.telemetry._lines import JsonFormatter, TextFormatter, fields_of, line_of


def record(**changes: object) -> RequestRecord:
    recording = Recorder(Wanted(share=1.0)).begin(
        api="rest", method="GET", path="/v1/models/m", request_id="id", traceparent="", client="::1"
    )
    assert recording is not None
    recording.status = 200
    return recording.record()._replace(**changes)  # type: ignore[arg-type]  # of fields that vary


@pytest.mark.parametrize("value", ["a b", 'a" status=500 "', "line\nbreak", "\x1b[2J", "é", ""])
def test_no_value_can_look_like_another(value: str) -> None:
    made = record(model=value, path=value)
    text = line_of(made, "text")
    assert text.count("\n") == 1 and text.isascii() and text.rstrip("\n").isprintable()
    fields = dict(part.partition("=")[::2] for part in re.findall(r'(?:"(?:\\.|[^"\\])*"|[^ "\n])+', text))
    assert (fields["status"], json.loads(fields["path"])) == ("200", value)
    assert json.loads(line_of(made, "json"))["path"] == value


def test_fields_come_in_the_table_s_order() -> None:
    numbers = [name for name, kind in typing.get_type_hints(RequestRecord).items() if kind is int and name != "status"]
    full = record(
        **dict.fromkeys(numbers, 7_000_000),
        traceparent=f"00-{'a' * 32}-{'b' * 16}-01", principal="p", model="m", signature="s", backend="b",
    )  # fmt: skip
    assert list(fields_of(full)) == [field.name for field in FIELDS]
    assert set(fields_of(record())) >= {field.name for field in FIELDS if field.always}


@pytest.mark.parametrize(
    ("status", "text", "fault"),
    [(0, "OK", False), (5, "NOT_FOUND", False), (13, "INTERNAL", True), (99, "99", False)],
)
def test_grpc_s_codes(status: int, text: str, fault: bool) -> None:
    made = record(api="grpc", status=status)
    assert (made.status_text, made.is_fault) == (text, fault)


def test_the_server_s_log_as_json_and_as_text() -> None:
    logger, stream = logging.Logger("modelyard.test"), io.StringIO()
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    for formatter in (JsonFormatter(), TextFormatter()):
        handler.setFormatter(formatter)
        logger.warning("a %s", "b", extra={"fields": {"path": "x y"}})
    try:
        raise ValueError("why")
    except ValueError:
        handler.setFormatter(JsonFormatter())
        logger.exception("it failed")
    first, second, third = stream.getvalue().splitlines()
    entry = json.loads(first)
    assert (entry["level"], entry["logger"], entry["message"], entry["path"]) == (
        "warning",
        "modelyard.test",
        "a b",
        "x y",
    )
    assert second.endswith('W modelyard.test: a b path="x y"')
    assert "ValueError: why" in json.loads(third)["exception"]
