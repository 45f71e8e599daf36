"""What Prometheus scrapes: its text, OpenMetrics where exemplars are wanted, and protobuf for native histograms.

Prometheus' own client library would not do: its text gives a counter's family
the suffix ``_total``, which upstream's names do not have, its OpenMetrics turns
their colons to underscores, and it writes no native histograms. Dashboards built
on these names must go on working.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from modelyard.serving.metrics._families import FAMILIES, Family
from modelyard.serving.metrics._series import NATIVE_SCHEMA, Exemplar
from modelyard.wire import metrics_pb2, varint

#: By family, its series: ``[kind, [[label, value], ...], number]``; a histogram's number is
#: ``[counts, sum, native buckets, zeros, exemplars]``.
Snapshot = dict[str, list[list[Any]]]

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROTOBUF = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
#: What is 0 for a native histogram: Prometheus' default, 2^-128.
_ZERO = 2.0**-128
#: Beyond which values are integers that floats hold.
_MAX_INT = float(1 << 53)


def exposition(snapshot: Snapshot, accept: str) -> tuple[str, bytes]:
    """The page, in the form that a client prefers.

    Args:
        snapshot: What is on it.
        accept: The request's ``Accept``; empty for none.

    Returns:
        Its content type, and its bytes.
    """
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


def _lines(family: Family, series: Iterable[Sequence[Any]], *, strict: bool) -> Iterable[str]:
    name, kind = family.name, family.kind
    # OpenMetrics has no counters without the suffix, and its families' names lack it.
    if strict and kind == "counter":
        described, declared = name.removesuffix("_total"), "counter" if name.endswith("_total") else "unknown"
    else:
        described, declared = name, kind
    yield f"# HELP {described} {_escape(family.help) if strict else family.help}"
    yield f"# TYPE {described} {declared}"
    for what, labels, number in series:
        if what == "histogram":
            yield from _histogram_lines(family, labels, number, strict=strict)
        else:
            yield f"{name}{_labels(labels)} {_number(number)}"


def _histogram_lines(
    family: Family, labels: Sequence[Sequence[str]], number: Sequence[Any], *, strict: bool
) -> Iterable[str]:
    name, total = family.name, 0
    exemplars = dict(number[4]) if strict else {}
    # Six digits, as upstream prints bounds: they are part of a series' name.
    bounds = [*(f"{bucket:g}" for bucket in family.buckets), "+Inf"]
    for index, (bound, count) in enumerate(zip(bounds, number[0], strict=True)):
        total += count
        tail = ""
        if index in exemplars:
            exemplar = Exemplar(*exemplars[index])
            tail = f' # {{trace_id="{exemplar.trace}"}} {_number(exemplar.value)} {exemplar.seconds:.3f}'
        yield f"{name}_bucket{_labels([*labels, ('le', bound)])} {total}{tail}"
    yield f"{name}_sum{_labels(labels)} {_number(number[1])}"
    yield f"{name}_count{_labels(labels)} {total}"


def _labels(labels: Sequence[Sequence[str]]) -> str:
    pairs = (f'{name}="{_escape(value)}"' for name, value in labels)
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < _MAX_INT else repr(value)


def _delimited(message: metrics_pb2.MetricFamily) -> bytes:
    data = message.SerializeToString()
    return varint(len(data)) + data if message.metric else b""


def _message(family: Family, series: Iterable[Sequence[Any]]) -> metrics_pb2.MetricFamily:
    message = metrics_pb2.MetricFamily(name=family.name, help=family.help, type=family.kind.upper())
    for what, labels, number in series:
        metric = message.metric.add(label=_pairs(labels))
        if what == "histogram":
            _fill(metric.histogram, family, number)
        else:
            part = metric.counter if what == "counter" else metric.gauge
            part.value = number
            part.SetInParent()
    return message


def _pairs(labels: Sequence[Sequence[str]]) -> list[metrics_pb2.LabelPair]:
    return [metrics_pb2.LabelPair(name=name, value=value) for name, value in labels]


def _fill(histogram: metrics_pb2.Histogram, family: Family, number: Sequence[Any]) -> None:
    counts, total, buckets, zeros, exemplars = number
    histogram.sample_count, histogram.sample_sum = sum(counts), total
    found, cumulative = dict(exemplars), 0
    # The last, up to infinity, is the count.
    for index, (bound, count) in enumerate(zip(family.buckets, counts[:-1], strict=True)):
        cumulative += count
        bucket = histogram.bucket.add(cumulative_count=cumulative, upper_bound=bound)
        if index in found:
            exemplar = Exemplar(*found[index])
            bucket.exemplar.label.extend(_pairs([("trace_id", exemplar.trace)]))
            bucket.exemplar.value = exemplar.value
            whole, part = divmod(exemplar.seconds, 1)
            bucket.exemplar.timestamp.seconds, bucket.exemplar.timestamp.nanos = int(whole), int(part * 1e9)
    histogram.schema, histogram.zero_threshold, histogram.zero_count = NATIVE_SCHEMA, _ZERO, zeros
    last, before = None, 0
    for bucket_number, count in sorted(buckets):
        if last is not None and bucket_number == last + 1:
            histogram.positive_span[-1].length += 1
        else:
            offset = bucket_number if last is None else bucket_number - last - 1
            histogram.positive_span.add(offset=offset, length=1)
        histogram.positive_delta.append(count - before)
        last, before = bucket_number, count
    if not buckets:
        # Prometheus tells a native histogram by its spans: this is one without a value.
        histogram.positive_span.add(offset=0, length=0)
