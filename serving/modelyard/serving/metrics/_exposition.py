"""What Prometheus scrapes: its text, OpenMetrics where exemplars are wanted, and protobuf for native histograms.

Prometheus' own client library would not do: its text gives a counter's family the suffix ``_total``, which upstream's
names do not have, its OpenMetrics turns their colons to underscores, and it writes no native histograms. Dashboards
built on these names must go on working.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from modelyard.serving.metrics._families import FAMILIES, Family
from modelyard.serving.metrics._series import NATIVE_SCHEMA, HistogramValue, Labels
from modelyard.wire import metrics_pb2, varint

#: By family, the labels and the value of its series.
Snapshot = dict[str, list[tuple[Labels, float | HistogramValue]]]
_Series = Iterable[tuple[Labels, float | HistogramValue]]

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROTOBUF = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
#: What is 0 for a native histogram: Prometheus' default, 2^-128.
_ZERO = 2.0**-128
#: Beyond which values are integers that floats hold.
_MAX_INT = float(1 << 53)
#: What Prometheus calls numbers that are none.
_SPECIAL = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


def exposition(snapshot: Snapshot, accept: str) -> tuple[str, bytes]:
    """The page, in the form that a client prefers."""
    kind = _preferred(accept)
    if kind == PROTOBUF:
        return kind, b"".join(_delimited(_message(family, snapshot.get(family.name, ()))) for family in FAMILIES)
    lines: list[str] = []
    for family in FAMILIES:
        lines.extend(_lines(family, snapshot.get(family.name, ()), strict=kind == OPEN_METRICS))
    if kind == OPEN_METRICS:
        lines.append("# EOF")
    return kind, ("\n".join(lines) + "\n").encode()


def _preferred(accept: str) -> str:
    best, most = TEXT, 0.0
    for item in accept.split(","):
        media, *parameters = (part.strip() for part in item.split(";"))
        values = dict(part.replace(" ", "").partition("=")[::2] for part in parameters)
        kind = {
            "application/openmetrics-text": OPEN_METRICS,
            "application/vnd.google.protobuf": PROTOBUF,
            "text/plain": TEXT,
            "*/*": TEXT,
        }.get(media.lower())
        if kind == PROTOBUF and (values.get("proto"), values.get("encoding")) != (
            "io.prometheus.client.MetricFamily",
            "delimited",
        ):
            continue
        try:
            quality = float(values.get("q", "1"))
        except ValueError:
            continue
        if kind is not None and quality > most:
            best, most = kind, quality
    return best


def _lines(family: Family, series: _Series, *, strict: bool) -> Iterator[str]:
    name, kind = family.name, family.kind
    # OpenMetrics has no counters without the suffix, and its families' names lack it.
    if strict and kind == "counter":
        described, declared = name.removesuffix("_total"), "counter" if name.endswith("_total") else "unknown"
    else:
        described, declared = name, kind
    yield f"# HELP {described} {_escape(family.help) if strict else family.help}"
    yield f"# TYPE {described} {declared}"
    for labels, value in series:
        if isinstance(value, HistogramValue):
            yield from _histogram_lines(family, labels, value, strict=strict)
        else:
            yield f"{name}{_labels(labels)} {_number(value)}"


def _histogram_lines(family: Family, labels: Labels, value: HistogramValue, *, strict: bool) -> Iterator[str]:
    name, total = family.name, 0
    # Six digits, as upstream prints bounds: they are part of a series' name.
    bounds = [*(f"{bucket:g}" for bucket in family.buckets), "+Inf"]
    for index, (bound, count) in enumerate(zip(bounds, value.counts, strict=True)):
        total += count
        exemplar = value.exemplars.get(index) if strict else None
        tail = ""
        if exemplar is not None:
            tail = f' # {{trace_id="{exemplar.trace}"}} {_number(exemplar.value)} {exemplar.seconds:.3f}'
        yield f"{name}_bucket{_labels((*labels, ('le', bound)))} {total}{tail}"
    yield f"{name}_sum{_labels(labels)} {_number(value.native.sum)}"
    yield f"{name}_count{_labels(labels)} {total}"


def _labels(labels: Labels) -> str:
    pairs = (f'{name}="{_escape(value)}"' for name, value in labels)
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if not math.isfinite(value):
        return _SPECIAL[repr(value)]
    return str(int(value)) if value == int(value) and abs(value) < _MAX_INT else repr(value)


def _delimited(message: metrics_pb2.MetricFamily) -> bytes:
    data = message.SerializeToString()
    return varint(len(data)) + data if message.metric else b""


def _message(family: Family, series: _Series) -> metrics_pb2.MetricFamily:
    message = metrics_pb2.MetricFamily(name=family.name, help=family.help, type=family.kind.upper())
    for labels, value in series:
        metric = message.metric.add(label=_pairs(labels))
        if isinstance(value, HistogramValue):
            _fill(metric.histogram, family, value)
        else:
            part = metric.counter if family.kind == "counter" else metric.gauge
            part.value = value
            part.SetInParent()
    return message


def _pairs(labels: Labels) -> list[metrics_pb2.LabelPair]:
    return [metrics_pb2.LabelPair(name=name, value=value) for name, value in labels]


def _fill(histogram: metrics_pb2.Histogram, family: Family, value: HistogramValue) -> None:
    histogram.sample_count, histogram.sample_sum = sum(value.counts), value.native.sum
    cumulative = 0
    # The last, up to infinity, is the count.
    for index, (bound, count) in enumerate(zip(family.buckets, value.counts[:-1], strict=True)):
        cumulative += count
        bucket = histogram.bucket.add(cumulative_count=cumulative, upper_bound=bound)
        exemplar = value.exemplars.get(index)
        if exemplar is not None:
            bucket.exemplar.label.extend(_pairs((("trace_id", exemplar.trace),)))
            bucket.exemplar.value = exemplar.value
            whole, part = divmod(exemplar.seconds, 1)
            bucket.exemplar.timestamp.seconds, bucket.exemplar.timestamp.nanos = int(whole), int(part * 1e9)
    histogram.schema, histogram.zero_threshold, histogram.zero_count = NATIVE_SCHEMA, _ZERO, value.native.zeros
    last, before = None, 0
    for number, count in sorted(value.native.buckets):
        if last is not None and number == last + 1:
            histogram.positive_span[-1].length += 1
        else:
            offset = number if last is None else number - last - 1
            histogram.positive_span.add(offset=offset, length=1)
        histogram.positive_delta.append(count - before)
        last, before = number, count
    if last is None:
        # Prometheus tells a native histogram by its spans: this is one without a value.
        histogram.positive_span.add(offset=0, length=0)
