"""The thread that writes: nothing waits for it, and what is lost is counted."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial

import pytest

from modelyard.errors import ConfigurationError
from modelyard.serving.config import TelemetryOptions
from modelyard.serving.metrics import Metrics
from modelyard.serving.telemetry import MAX_RECORDS, Recorder, RequestRecord, Telemetry, Wanted
from tests.support.waiting import until


class Sink:
    def __init__(self, *, stuck: bool = False, error: Exception | None = None) -> None:
        self.records: list[RequestRecord] = []
        self.go_on, self.entered = threading.Event(), threading.Event()
        self.error = error
        if not stuck:
            self.go_on.set()

    def write(self, records: Sequence[RequestRecord]) -> None:
        self.entered.set()
        self.go_on.wait(60)
        if self.error is not None:
            raise self.error
        self.records += records

    def holds(self, count: int) -> bool:
        return len(self.records) >= count

    def close(self) -> None:
        pass


def record_one(recorder: Recorder | None, traceparent: str = "") -> None:
    assert recorder is not None
    recording = recorder.begin(
        api="rest", method="GET", path="/", request_id="-", traceparent=traceparent, client="127.0.0.1"
    )
    if recording is not None:
        recorder.end(recording)


def lost(metrics: Metrics) -> float:
    return metrics.counter(":modelyard:serving:request_records_dropped", {}).value


def test_a_sink_that_is_stuck_holds_nobody_up_and_what_is_lost_is_counted() -> None:
    metrics, sink = Metrics(), Sink(stuck=True)
    telemetry = Telemetry(TelemetryOptions(access_share=1.0), metrics, {}, sinks=[sink])
    # The access log itself would write to the standard output.
    telemetry._sinks = [sink]
    telemetry.start()
    record_one(telemetry.recorder)
    assert sink.entered.wait(30)
    for _ in range(MAX_RECORDS + 5):
        record_one(telemetry.recorder)
    assert sink.records == []
    sink.go_on.set()
    telemetry.stop()
    assert (len(sink.records), lost(metrics)) == (MAX_RECORDS + 1, 5)


def test_a_sink_that_fails_is_told_of_once_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    metrics, bad, good = Metrics(), Sink(error=OSError("full")), Sink()
    telemetry = Telemetry(TelemetryOptions(), metrics, {}, sinks=[bad, good])
    recorder = Recorder(Wanted(slow_s=1e-9))
    telemetry.add_source(recorder.take)
    telemetry.start()
    for wanted in (1, 2, 3):
        record_one(recorder)
        until(partial(good.holds, wanted))
    telemetry.stop()
    assert (len(good.records), lost(metrics)) == (3, 3)
    assert len([line for line in caplog.records if "could not be logged" in line.getMessage()]) == 1


def test_who_is_recorded() -> None:
    untraced, traced = f"00-{'a' * 32}-{'b' * 16}-00", f"00-{'a' * 32}-{'b' * 16}-01"
    for wanted, traceparent, count in (
        (Wanted(), "", 0),
        (Wanted(slow_s=10.0), "", 0),
        (Wanted(slow_s=1e-9), "", 1),
        (Wanted(share=1.0), untraced, 1),
        (Wanted(traced=True), untraced, 0),
        (Wanted(traced=True), traced, 1),
        (Wanted(traced=True), "nonsense", 1),
        (Wanted(traced=True, parents=False), untraced, 1),
    ):
        recorder = Recorder(wanted)
        record_one(recorder, traceparent)
        assert len(recorder.take()[0]) == count, wanted


def test_nobody_asks_and_nothing_runs() -> None:
    for environment in (
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
    ):
        telemetry = Telemetry(TelemetryOptions(), Metrics(), environment)
        telemetry.start()
        assert telemetry.recorder is None
        telemetry.stop()


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "expected otlp or none"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"},
            "expected http/protobuf or grpc",
        ),
    ],
)
def test_what_is_not_known_is_refused(environment: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Telemetry(TelemetryOptions(), Metrics(), environment)


def test_without_the_extra_the_error_names_it() -> None:
    script = (
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "from modelyard.serving.telemetry._tracing import tracing_of\n"
        "from modelyard.errors import ConfigurationError\n"
        "try: tracing_of({'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://127.0.0.1:1'})\n"
        "except ConfigurationError as exc: print(exc.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert 'pip install "modelyard[tracing]"' in done.stdout, done.stderr
