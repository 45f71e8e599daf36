"""The forms of the metrics page, and what is on it as versions and callers come and go."""

from __future__ import annotations

import io
import math

import pytest
from google.protobuf import proto

from modelyard.serving.metrics import Exemplar, Metrics, exposition
from modelyard.wire import metrics_pb2
from tests.support.metrics import page_of

LATENCY = ":tensorflow:serving:request_latency"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TEXT, OPEN, PROTOBUF = "text/plain", "application/openmetrics-text", "application/vnd.google.protobuf"
_PROTOBUF = f"{PROTOBUF};proto=io.prometheus.client.MetricFamily;encoding=delimited"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html, */*;q=0.1", TEXT),
        # Prometheus 2.42, without and with native histograms.
        (f"{OPEN};version=1.0.0,{OPEN};version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", OPEN),
        (f"{_PROTOBUF},{OPEN};version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.6,*/*;q=0.1", PROTOBUF),
        # Prometheus 3.
        (f"{OPEN};version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;q=0.4,*/*;q=0.1", OPEN),
        (f"{PROTOBUF};proto=another;encoding=delimited,text/plain;q=0.5", TEXT),
        (f"{OPEN};q=many,text/plain;q=0.5", TEXT),
    ],
)
def test_the_client_chooses_the_form(accept: str, kind: str) -> None:
    assert exposition(Metrics().snapshot(), accept)[0].partition(";")[0] == kind


def recorded() -> Metrics:
    metrics = Metrics()
    metrics.know("m")
    for seconds, trace in ((1e-5, ""), (3e-5, TRACE), (2.0, "")):
        metrics.record_request("m", api="Predict", entrypoint="GRPC", status="OK", seconds=seconds, trace=trace)
    return metrics


def test_open_metrics_has_exemplars_and_an_end() -> None:
    lines = exposition(recorded().snapshot(), OPEN)[1].decode().splitlines()
    assert lines[-1] == "# EOF"
    assert "# TYPE :tensorflow:serving:request_count unknown" in lines
    assert "# TYPE process_cpu_seconds counter" in lines
    (line,) = [line for line in lines if " # {" in line]
    series, _, exemplar = line.partition(" # ")
    assert series == f'{LATENCY}_bucket{{model_name="m",API="Predict",entrypoint="GRPC",le="32.4"}} 2'
    assert exemplar.startswith(f'{{trace_id="{TRACE}"}} 30 1')
    assert " # {" not in page_of(recorded())


def families(data: bytes) -> dict[str, metrics_pb2.MetricFamily]:
    found, rest = {}, io.BytesIO(data)
    while rest.tell() < len(data):
        family = proto.parse_length_prefixed(metrics_pb2.MetricFamily, rest)
        assert family is not None
        found[family.name] = family
    return found


def test_protobuf_has_native_buckets() -> None:
    values = [0.0, 0.7, 1.0, 30.0, 30.1, 31.0, 1e6]
    metrics = Metrics()
    for value in values:
        metrics.observe(":tensorflow:serving:batching_session:input_batch_size", {}, value)
    family = families(exposition(metrics.snapshot(), _PROTOBUF)[1])[
        ":tensorflow:serving:batching_session:input_batch_size"
    ]
    (metric,) = family.metric
    histogram = metric.histogram
    assert (histogram.sample_count, histogram.zero_count, histogram.schema) == (7, 1, 3)
    assert histogram.sample_sum == pytest.approx(sum(values))
    found, index, count = {}, 0, 0
    deltas = iter(histogram.positive_delta)
    for span in histogram.positive_span:
        index += span.offset
        for _ in range(span.length):
            count += next(deltas)
            found[index] = count
            index += 1
    wanted: dict[int, int] = {}
    for value in values[1:]:
        # A bucket has its upper bound and not its lower one.
        number = math.ceil(round(math.log2(value) * 8, 9))
        wanted[number] = wanted.get(number, 0) + 1
    assert found == wanted
    assert [(bucket.upper_bound, bucket.cumulative_count) for bucket in histogram.bucket][:2] == [(1.0, 3), (2.0, 3)]


def test_protobuf_has_exemplars_counters_and_gauges() -> None:
    metrics = recorded()
    metrics.watch(":modelyard:serving:connections", {}, lambda: 3)
    found = families(exposition(metrics.snapshot(), _PROTOBUF)[1])
    (latency,) = found[LATENCY].metric
    (bucket,) = [bucket for bucket in latency.histogram.bucket if bucket.HasField("exemplar")]
    assert [(pair.name, pair.value) for pair in bucket.exemplar.label] == [("trace_id", TRACE)]
    assert bucket.exemplar.value == pytest.approx(30)
    assert bucket.exemplar.timestamp.seconds > 1.7e9
    (count,) = found[":tensorflow:serving:request_count"].metric
    assert (count.counter.value, found[":modelyard:serving:connections"].metric[0].gauge.value) == (3, 3)


def test_the_core_s_native_buckets_are_counted_in_classic_ones() -> None:
    here, there, large = (Metrics().histogram(":modelyard:serving:queue_latency", {}) for _ in range(3))
    for value in (0.0, 15.0, 16.0, 16.1, 64.0, 70.0):
        here.add(value)
    there.merge(here.value().native)
    assert there.value().counts == here.value().counts
    assert here.value().counts[:4] == [3, 2, 1, 0]
    large.add(70.0)
    there.merge(large.value().native, large.value().counts, [(2, Exemplar(TRACE, 70.0, 1.0))])
    assert there.value().counts[:4] == [3, 2, 2, 0]


def test_versions_that_are_gone_leave_the_page() -> None:
    metrics = Metrics()
    closing = {}
    for version in range(1, 8):
        closing[version] = metrics.version_loaded("m", version, f"/m/{version}")
        metrics.parts("m", version, "serving_default", "onnxruntime").batch(rows=1, padding=0, requests=1, infer_ns=1)
        metrics.count(":modelyard:serving:predictions", {"model": "m", "version": str(version), "status": "OK"})
        metrics.count(
            ":tensorflow:cc:saved_model:load_attempt_count", {"model_path": f"/m/{version}", "status": "success"}
        )
        metrics.watch(":modelyard:serving:version_memory_bytes", {"model": "m", "version": str(version)}, lambda: 1)

    def shown(name: str) -> set[int]:
        rows = [dict(labels) for labels, _ in metrics.snapshot()[name]]
        return {int(row.get("version") or row["model_path"].rpartition("/")[2]) for row in rows}

    # The one that is loaded anew is not gone when its older copy is.
    again = metrics.version_loaded("m", 7, "/m/7")
    closing[7]()
    for version in (1, 2, 3):
        closing[version]()
    assert shown(":modelyard:serving:version_memory_bytes") == {4, 5, 6, 7}
    assert shown(":modelyard:serving:predictions") == {1, 2, 3, 4, 5, 6, 7}
    for version in (4, 5, 6):
        closing[version]()
    for name in (
        ":modelyard:serving:predictions",
        ":modelyard:serving:batch_rows",
        ":tensorflow:cc:saved_model:load_attempt_count",
    ):
        assert shown(name) == {3, 4, 5, 6, 7}
    # It comes back, and counts anew.
    metrics.version_loaded("m", 1, "/m/1")
    metrics.count(":modelyard:serving:predictions", {"model": "m", "version": "1", "status": "OK"})
    again()
    assert shown(":modelyard:serving:predictions") == {1, 4, 5, 6, 7}


def test_callers_beyond_the_first_share_a_name() -> None:
    metrics = Metrics()
    metrics.know("m")
    for number in range(150):
        metrics.record_request("m", api="Predict", entrypoint="GRPC", status="OK", seconds=0.1, client=f"key {number}")
    rows = {dict(labels)["client"]: count for labels, count in metrics.snapshot()[":modelyard:serving:client_requests"]}
    assert (len(rows), rows["key 0"], rows["other"]) == (101, 1, 50)


def test_numbers_that_are_none_are_on_the_page() -> None:
    """As the largest error of a shadow that overflows: the other series must not go with it."""
    metrics = Metrics()
    for target, value in (("a", math.inf), ("b", -math.inf), ("c", math.nan)):
        labels = {"model": "m", "target": target}
        metrics.watch(":modelyard:serving:shadow_max_error", labels, lambda value=value: value)  # type: ignore[misc]
    lines = [line.rpartition(" ")[2] for line in page_of(metrics).splitlines() if "shadow_max_error{" in line]
    assert sorted(lines) == ["+Inf", "-Inf", "NaN"]
