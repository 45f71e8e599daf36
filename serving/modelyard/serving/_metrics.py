"""Metrics under TensorFlow Serving's names, as a Prometheus text page.

A library would not do here: upstream's names have colons and no ``_total``
suffix, and dashboards built on them must go on working.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Upstream's buckets for microseconds: 10 * 1.8^i, 33 of them.
LATENCY_BUCKETS_US: tuple[float, ...] = tuple(10 * 1.8**index for index in range(33))
#: Upstream's buckets for numbers of examples: powers of two.
EXAMPLE_BUCKETS: tuple[float, ...] = tuple(float(1 << index) for index in range(15))

Labels = tuple[tuple[str, str], ...]


@dataclass
class _Histogram:
    counts: list[int]
    sum: float = 0.0


@dataclass
class _Family:
    kind: str
    help: str
    buckets: tuple[float, ...] = ()
    counters: dict[Labels, float] = field(default_factory=dict)
    histograms: dict[Labels, _Histogram] = field(default_factory=dict)


#: Every metric that the server exposes: name, kind, help, buckets.
FAMILIES: Sequence[tuple[str, str, str, tuple[float, ...]]] = (
    (":tensorflow:serving:request_count", "counter", "Requests by model and status.", ()),
    (":tensorflow:serving:request_latency", "histogram", "Time of a successful request, in microseconds.",
     LATENCY_BUCKETS_US),
    (":tensorflow:serving:runtime_latency", "histogram", "Time inside the runtime, in microseconds.",
     LATENCY_BUCKETS_US),
    (":tensorflow:serving:request_example_counts", "histogram", "Examples in a request.", EXAMPLE_BUCKETS),
    (":tensorflow:serving:request_example_count_total", "counter", "Examples in all requests.", ()),
    (":tensorflow:serving:model_warmup_latency", "histogram", "Time of a model's warm-up, in microseconds.",
     LATENCY_BUCKETS_US),
    (":tensorflow:serving:model_warmup_records_read", "counter", "Warm-up records replayed.", ()),
    (":tensorflow:cc:saved_model:load_attempt_count", "counter", "Attempts to load a version.", ()),
    (":tensorflow:serving:batching_session:queuing_latency", "histogram",
     "Time that a request waited for its batch, in microseconds.", LATENCY_BUCKETS_US),
    (":tensorflow:serving:batching_session:input_batch_size", "histogram", "Rows in a request.", EXAMPLE_BUCKETS),
    (":tensorflow:serving:batching_session:processed_batch_size", "histogram", "Rows in a batch.", EXAMPLE_BUCKETS),
    (":tensorflow:serving:batching_session:padding_size", "histogram", "Rows added to fill a batch.",
     EXAMPLE_BUCKETS),
    (":tensorflow:serving:batching_session:wrapped_run_count", "counter", "Batches computed.", ()),
    (":modelyard:serving:predictions", "counter", "Predictions by model, version and status.", ()),
)  # fmt: skip


class Metrics:
    """Counters and histograms; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: set[str] = set()
        self._families = {
            name: _Family(kind=kind, help=text, buckets=buckets) for name, kind, text, buckets in FAMILIES
        }

    def count(self, name: str, labels: Mapping[str, str], amount: float = 1) -> None:
        """Raises a counter.

        Args:
            name: One of :data:`FAMILIES`.
            labels: Label names and values.
            amount: By how much.
        """
        key = tuple(labels.items())
        with self._lock:
            counters = self._families[name].counters
            counters[key] = counters.get(key, 0) + amount

    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Adds a value to a histogram.

        Args:
            name: One of :data:`FAMILIES`.
            labels: Label names and values.
            value: In the histogram's unit.
        """
        key = tuple(labels.items())
        with self._lock:
            family = self._families[name]
            histogram = family.histograms.get(key)
            if histogram is None:
                histogram = family.histograms[key] = _Histogram(counts=[0] * (len(family.buckets) + 1))
            histogram.counts[bisect.bisect_left(family.buckets, value)] += 1
            histogram.sum += value

    def record_request(self, model: str, *, api: str, entrypoint: str, status: str, seconds: float) -> None:
        """Records a request as upstream does: the latency of successes only.

        Args:
            model: The model asked for.
            api: Such as ``Predict`` (gRPC) or ``predict`` (REST).
            entrypoint: ``GRPC`` or ``REST``.
            status: Name of the status code.
            seconds: How long it took.
        """
        if not self.is_known(model):
            # Names that strangers make up must not grow the page without end.
            model = ""
        self.count(":tensorflow:serving:request_count", {"model_name": model, "status": status})
        if status == "OK":
            labels = {"model_name": model, "API": api, "entrypoint": entrypoint}
            self.observe(":tensorflow:serving:request_latency", labels, seconds * 1e6)

    def know(self, model: str) -> None:
        """Makes a model's name one that labels may hold.

        Args:
            model: The name.
        """
        with self._lock:
            self._models.add(model)

    def is_known(self, model: str) -> bool:
        """Whether a version of a model was found at some time.

        Args:
            model: The name.
        """
        return model in self._models

    def render(self) -> str:
        """The page that Prometheus scrapes, in its text format 0.0.4."""
        lines: list[str] = []
        with self._lock:
            for name, family in self._families.items():
                lines.append(f"# HELP {name} {family.help}")
                lines.append(f"# TYPE {name} {family.kind}")
                for labels, value in family.counters.items():
                    lines.append(f"{name}{_labels(labels)} {_number(value)}")
                for labels, histogram in family.histograms.items():
                    lines.extend(_histogram_lines(name, labels, histogram, family.buckets))
        return "\n".join(lines) + "\n"


def _histogram_lines(name: str, labels: Labels, histogram: _Histogram, buckets: tuple[float, ...]) -> list[str]:
    lines, total = [], 0
    # Six digits, as upstream prints bounds: they are part of a series' name.
    for bound, count in zip([*(f"{bucket:g}" for bucket in buckets), "+Inf"], histogram.counts, strict=True):
        total += count
        lines.append(f"{name}_bucket{_labels((*labels, ('le', bound)))} {total}")
    lines.append(f"{name}_sum{_labels(labels)} {_number(histogram.sum)}")
    lines.append(f"{name}_count{_labels(labels)} {total}")
    return lines


def _labels(labels: Labels) -> str:
    pairs = (f'{name}="{_escape(value)}"' for name, value in labels)
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
