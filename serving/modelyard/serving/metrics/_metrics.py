"""Metrics under TensorFlow Serving's names, as a Prometheus text page.

A library would not do here: upstream's names have colons and no ``_total``
suffix, and dashboards built on them must go on working.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from modelyard.serving.metrics._page import Snapshot, page

#: Upstream's buckets for microseconds: 10 * 1.8^i, 33 of them.
LATENCY_BUCKETS_US: tuple[float, ...] = tuple(10 * 1.8**index for index in range(33))
#: Upstream's buckets for numbers of examples: powers of two.
EXAMPLE_BUCKETS: tuple[float, ...] = tuple(float(1 << index) for index in range(15))

Labels = tuple[tuple[str, str], ...]


class Counter:
    """One series of a counter; safe to use from several threads."""

    __slots__ = ("_lock", "value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        """Raises the counter.

        Args:
            amount: By how much.
        """
        with self._lock:
            self.value += amount


class Histogram:
    """One series of a histogram; safe to use from several threads.

    Args:
        buckets: Upper bounds, ascending.
    """

    __slots__ = ("_buckets", "_lock", "counts", "sum")

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._lock = threading.Lock()
        self._buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Adds a value.

        Args:
            value: In the histogram's unit.
            times: How often.
        """
        index = bisect.bisect_left(self._buckets, value)
        with self._lock:
            self.counts[index] += times
            self.sum += value * times

    def merge(self, counts: Sequence[int], total: float) -> None:
        """Adds values that were counted elsewhere.

        Args:
            counts: How many are in each bucket, and above.
            total: Their sum.
        """
        with self._lock:
            self.counts = [mine + more for mine, more in zip(self.counts, counts, strict=True)]
            self.sum += total


@dataclass
class _Family:
    kind: str
    help: str
    buckets: tuple[float, ...] = ()
    counters: dict[Labels, Counter] = field(default_factory=dict)
    histograms: dict[Labels, Histogram] = field(default_factory=dict)
    gauges: dict[Labels, Callable[[], float]] = field(default_factory=dict)


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
    (":modelyard:serving:requests_in_flight", "gauge", "Requests for predictions that are waiting or being computed.",
     ()),
    (":modelyard:serving:request_bytes_in_flight", "gauge",
     "Bytes of requests that the native core is reading or answering.", ()),
    (":modelyard:serving:hanging_batches", "gauge",
     "Batches that have been computed longer than --max_batch_seconds allows.", ()),
)  # fmt: skip


class Metrics:
    """Counters, gauges and histograms; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: set[str] = set()
        self._before_reading: list[Callable[[], None]] = []
        #: What a request is recorded in, by model, API, entry point and status.
        self._requests: dict[tuple[str, str, str, str], tuple[Counter, Histogram | None]] = {}
        self._families = {
            name: _Family(kind=kind, help=text, buckets=buckets) for name, kind, text, buckets in FAMILIES
        }

    def counter(self, name: str, labels: Mapping[str, str]) -> Counter:
        """One series of a counter, for those who count often.

        Args:
            name: One of :data:`FAMILIES`.
            labels: Label names and values.
        """
        key = tuple(labels.items())
        with self._lock:
            counters = self._families[name].counters
            counter = counters.get(key)
            if counter is None:
                counter = counters[key] = Counter()
            return counter

    def histogram(self, name: str, labels: Mapping[str, str]) -> Histogram:
        """One series of a histogram, for those who observe often.

        Args:
            name: One of :data:`FAMILIES`.
            labels: Label names and values.
        """
        key = tuple(labels.items())
        with self._lock:
            family = self._families[name]
            histogram = family.histograms.get(key)
            if histogram is None:
                histogram = family.histograms[key] = Histogram(family.buckets)
            return histogram

    def watch(self, name: str, labels: Mapping[str, str], read: Callable[[], float]) -> None:
        """Shows a number that is kept anyway: it is read when the page is, and costs no request anything.

        Args:
            name: A gauge among :data:`FAMILIES`.
            labels: Label names and values.
            read: Returns the number; called on whatever thread renders the page.
        """
        with self._lock:
            self._families[name].gauges[tuple(labels.items())] = read

    def count(self, name: str, labels: Mapping[str, str], amount: float = 1) -> None:
        """Raises a counter.

        Args:
            name: One of :data:`FAMILIES`.
            labels: Label names and values.
            amount: By how much.
        """
        self.counter(name, labels).add(amount)

    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Adds a value to a histogram.

        Args:
            name: One of :data:`FAMILIES`.
            labels: Label names and values.
            value: In the histogram's unit.
        """
        self.histogram(name, labels).add(value)

    def record_request(self, model: str, *, api: str, entrypoint: str, status: str, seconds: float) -> None:
        """Records a request as upstream does: the latency of successes only.

        Args:
            model: The model asked for.
            api: Such as ``Predict`` (gRPC) or ``predict`` (REST).
            entrypoint: ``GRPC`` or ``REST``.
            status: Name of the status code.
            seconds: How long it took.
        """
        key = (model, api, entrypoint, status)
        series = self._requests.get(key)
        if series is None:
            series = self._request_series(*key)
        requests, latency = series
        requests.add()
        if latency is not None:
            latency.add(seconds * 1e6)

    def _request_series(self, model: str, api: str, entrypoint: str, status: str) -> tuple[Counter, Histogram | None]:
        known = self.is_known(model)
        # Names that strangers make up must not grow the page without end.
        name = model if known else ""
        requests = self.counter(":tensorflow:serving:request_count", {"model_name": name, "status": status})
        latency = None
        if status == "OK":
            labels = {"model_name": name, "API": api, "entrypoint": entrypoint}
            latency = self.histogram(":tensorflow:serving:request_latency", labels)
        if known:
            self._requests[model, api, entrypoint, status] = (requests, latency)
        return requests, latency

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

    def before_reading(self, fetch: Callable[[], None]) -> None:
        """Has somebody who counts by himself add his numbers before the series are read.

        Args:
            fetch: Called without the lock.
        """
        self._before_reading.append(fetch)

    def add_requests(self, model: str, *, api: str, entrypoint: str, counts: Sequence[int], sum_us: float) -> None:
        """Records requests that succeeded and were counted elsewhere; see :meth:`record_request`.

        Args:
            model: The model.
            api: As for one request.
            entrypoint: So, too.
            counts: Requests by :data:`LATENCY_BUCKETS_US`, and those above.
            sum_us: Microseconds of all of them.
        """
        requests, latency = self._request_series(model, api, entrypoint, "OK")
        requests.add(sum(counts))
        if latency is not None:
            latency.merge(counts, sum_us)

    def snapshot(self) -> Snapshot:
        """All series as plain data."""
        for fetch in self._before_reading:
            fetch()
        with self._lock:
            return {
                name: [
                    *(["counter", labels, counter.value] for labels, counter in family.counters.items()),
                    *(["gauge", labels, read()] for labels, read in family.gauges.items()),
                    *(
                        ["histogram", labels, [list(each.counts), each.sum]]
                        for labels, each in family.histograms.items()
                    ),
                ]
                for name, family in self._families.items()
            }

    def render(self) -> str:
        """The page that Prometheus scrapes, in its text format 0.0.4."""
        return page(self.snapshot(), FAMILIES)
