"""What the server says of its requests: access log, slow-request log, traces; and its own log."""

from modelyard.serving.telemetry._lines import configure_logging, log_level, set_log_level
from modelyard.serving.telemetry._recorder import MAX_RECORDS, Recorder, Recording, Wanted
from modelyard.serving.telemetry._records import FIELDS, Field, RequestRecord
from modelyard.serving.telemetry._telemetry import Sink, Telemetry

__all__ = [
    "FIELDS",
    "Field",
    "MAX_RECORDS",
    "Recorder",
    "Recording",
    "RequestRecord",
    "Sink",
    "Telemetry",
    "Wanted",
    "configure_logging",
    "log_level",
    "set_log_level",
]
