"""Lines of logs: of requests, and of the server itself."""

from __future__ import annotations

import datetime
import json
import logging
import os
import re
import select
from typing import TextIO

from modelyard.console import printable
from modelyard.serving.config import Form
from modelyard.serving.telemetry._records import FIELDS, RequestRecord

_PLAIN = re.compile(r"[\w./:~@+-]+", re.ASCII)


def fields_of(record: RequestRecord) -> dict[str, str | int | float]:
    """The fields of a record that are not empty."""
    values = ((field, field.of(record)) for field in FIELDS)
    return {field.name: value for field, value in values if value or field.always}


def text_of(fields: dict[str, str | int | float]) -> str:
    """Fields as ``name=value``, quoted where that is not plain."""
    return " ".join(f"{name}={_quoted(str(value))}" for name, value in fields.items())


def line_of(record: RequestRecord, form: Form) -> str:
    fields = fields_of(record)
    return (json.dumps(fields, separators=(",", ":")) if form == "json" else text_of(fields)) + "\n"


def _quoted(text: str) -> str:
    # Callers choose names and paths: no line of theirs may look like another.
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


class JsonFormatter(logging.Formatter):
    """The server's log, a JSON object on each line."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        fields: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            # What a logger is given beside the text: the fields of a slow request.
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, separators=(",", ":"), default=str)


class TextFormatter(logging.Formatter):
    """The server's log, for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname).1s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's own name
        # It quotes files of models: no line of theirs may look like one of ours, nor a terminal obey it.
        text = printable(super().formatMessage(record))
        fields = getattr(record, "fields", None)
        return f"{text} {text_of(fields)}" if fields else text


def configure_logging(level: str, form: Form, stream: TextIO) -> None:
    """Sets up the log of a process that is a server."""
    root = logging.getLogger()
    handler = next((each for each in root.handlers if isinstance(each, _Handler)), None)
    # A program that runs a server inside has set up the log already.
    if handler is None and not root.handlers:
        handler = _Handler(stream)
        root.addHandler(handler)
        root.setLevel(logging.INFO)
    if handler is not None:
        handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    set_log_level(level)


def set_log_level(level: str) -> None:
    logging.getLogger("modelyard").setLevel(level.upper())


def log_level() -> str:
    return logging.getLevelName(logging.getLogger("modelyard").getEffectiveLevel()).lower()


class _Handler(logging.StreamHandler[TextIO]):
    """The handler that a server's process has set up itself.

    The reader of a pipe may be slow, and may have stopped: the event loop, and with it health checks and signals, would
    wait for it. It has a second once; until it reads again, what the pipe has no room for is left out.
    """

    _patience_s = 1.0

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line in pieces that a pipe takes at once, where it takes anything."""
        try:
            line = (self.format(record) + self.terminator).encode("utf-8", "backslashreplace")
            number = self.stream.fileno()
            while line and select.select((), (number,), (), self._patience_s)[1]:
                line = line[os.write(number, line[: select.PIPE_BUF]) :]
            self._patience_s = 0.0 if line else _Handler._patience_s
        except Exception:
            self.handleError(record)
