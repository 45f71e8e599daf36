"""What is counted, by metric and labels."""

from __future__ import annotations

import threading
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from modelyard.serving.metrics._exposition import Snapshot
from modelyard.serving.metrics._families import FAMILIES
from modelyard.serving.metrics._parts import Parts
from modelyard.serving.metrics._series import Counter, Exemplar, Histogram, Labels, Native

#: Versions of a model that are unloaded, and whose counters stay for a while: so many of the newest.
_GONE_VERSIONS = 4
#: Callers that have a label of their own.
_MAX_CLIENTS = 100
_OTHER = "other"


@dataclass
class _Family:
    buckets: tuple[float, ...] = ()
    counters: dict[Labels, Counter] = field(default_factory=dict)
    histograms: dict[Labels, Histogram] = field(default_factory=dict)
    gauges: dict[Labels, Callable[[], float]] = field(default_factory=dict)
    readers: list[Callable[[], Iterable[tuple[Mapping[str, str], float]]]] = field(default_factory=list)

    def forget(self, wanted: Callable[[Labels], bool]) -> None:
        series: tuple[dict[Labels, Counter], dict[Labels, Histogram]] = (self.counters, self.histograms)
        for known in series:
            for labels in [labels for labels in known if wanted(labels)]:
                del known[labels]


class Metrics:
    """Counters, gauges and histograms; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: set[str] = set()
        self._clients: set[str] = set()
        self._before_reading: list[Callable[[], None]] = []
        #: What a request is recorded in, by model, API, entry point and status.
        self._requests: dict[tuple[str, str, str, str], tuple[Counter, Histogram | None]] = {}
        self._parts: dict[tuple[str, int, str, str], Parts] = {}
        #: How often each version is loaded now, and those that are no more, the newest last.
        self._loaded: Tally[tuple[str, int]] = Tally()
        self._gone: dict[str, deque[tuple[int, str]]] = {}
        self._families = {family.name: _Family(family.buckets) for family in FAMILIES}

    def counter(self, name: str, labels: Mapping[str, str]) -> Counter:
        """One series of a counter, for those who count often."""
        key = tuple(labels.items())
        with self._lock:
            counters = self._families[name].counters
            counter = counters.get(key)
            if counter is None:
                counter = counters[key] = Counter()
            return counter

    def histogram(self, name: str, labels: Mapping[str, str]) -> Histogram:
        """One series of a histogram, for those who observe often."""
        key = tuple(labels.items())
        with self._lock:
            family = self._families[name]
            histogram = family.histograms.get(key)
            if histogram is None:
                histogram = family.histograms[key] = Histogram(family.buckets)
            return histogram

    def watch(self, name: str, labels: Mapping[str, str], read: Callable[[], float]) -> None:
        """Shows a number that is kept anyway: it is read when the page is, and costs no request anything."""
        with self._lock:
            self._families[name].gauges[tuple(labels.items())] = read

    def watch_all(self, name: str, read: Callable[[], Iterable[tuple[Mapping[str, str], float]]]) -> None:
        """As :meth:`watch`, for numbers whose labels come and go."""
        with self._lock:
            self._families[name].readers.append(read)

    def count(self, name: str, labels: Mapping[str, str], amount: float = 1) -> None:
        self.counter(name, labels).add(amount)

    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:
        self.histogram(name, labels).add(value)

    def parts(self, model: str, version: int, signature: str, runtime: str) -> Parts:
        key = (model, version, signature, runtime)
        parts = self._parts.get(key)
        if parts is None:
            labels = {"model": model, "version": str(version), "signature": signature, "runtime": runtime}
            made = Parts(lambda name: self.histogram(name, labels))
            with self._lock:
                parts = self._parts.setdefault(key, made)
        return parts

    def record_request(
        self,
        model: str,
        *,
        api: str,
        entrypoint: str,
        status: str,
        seconds: float,
        client: str = "",
        trace: str = "",
    ) -> None:
        """Records a request as upstream does: the latency of successes only.

        ``api`` is such as ``Predict`` (gRPC) or ``predict`` (REST), ``entrypoint`` ``GRPC`` or ``REST``.
        """
        key = (model, api, entrypoint, status)
        series = self._requests.get(key)
        if series is None:
            series = self._request_series(*key)
        requests, latency = series
        requests.add()
        if latency is not None:
            latency.add(seconds * 1e6, trace=trace)
        if client:
            self.count_client(client, model, status)

    def count_client(self, client: str, model: str, status: str, amount: int = 1) -> None:
        with self._lock:
            if client not in self._clients:
                if len(self._clients) < _MAX_CLIENTS:
                    self._clients.add(client)
                else:
                    client = _OTHER
        labels = {"client": client, "model_name": self._label_of(model), "status": status}
        self.count(":modelyard:serving:client_requests", labels, amount)

    def refuse(self, reason: str, model: str = "", amount: int = 1) -> None:
        """Counts requests that were not let in."""
        labels = {"model": self._label_of(model), "reason": reason}
        self.count(":modelyard:serving:refused", labels, amount)

    def _label_of(self, model: str) -> str:
        # Callers may send any names: they must not grow the page without end.
        return model if self.is_known(model) else ""

    def _request_series(self, model: str, api: str, entrypoint: str, status: str) -> tuple[Counter, Histogram | None]:
        name = self._label_of(model)
        requests = self.counter(":tensorflow:serving:request_count", {"model_name": name, "status": status})
        latency = None
        if status == "OK":
            labels = {"model_name": name, "API": api, "entrypoint": entrypoint}
            latency = self.histogram(":tensorflow:serving:request_latency", labels)
        if name:
            self._requests[model, api, entrypoint, status] = (requests, latency)
        return requests, latency

    def know(self, model: str) -> None:
        """Makes a model's name one that labels may hold."""
        with self._lock:
            self._models.add(model)

    def is_known(self, model: str) -> bool:
        """Whether a version of a model was found at some time."""
        return model in self._models

    def version_loaded(self, model: str, version: int, path: str) -> Callable[[], bool]:
        """A version is loaded.

        Its series stay until some newer ones were unloaded. Call the result when it is unloaded: it tells whether no
        other of that number is loaded.
        """
        with self._lock:
            self._loaded[model, version] += 1
            gone = self._gone.setdefault(model, deque())
            # It is back.
            self._gone[model] = deque(each for each in gone if each[0] != version)
        return partial(self._unloaded, model, version, path)

    def _unloaded(self, model: str, version: int, path: str) -> bool:
        with self._lock:
            self._loaded[model, version] -= 1
            if self._loaded[model, version] > 0:
                # It was loaded anew, from other files.
                return False
            del self._loaded[model, version]
            gone = self._gone.setdefault(model, deque())
            gone.append((version, path))
            for family in self._families.values():
                for labels in [each for each in family.gauges if _is_of(each, model, version, path)]:
                    del family.gauges[labels]
            while len(gone) > _GONE_VERSIONS:
                oldest, its_path = gone.popleft()
                self._parts = {key: parts for key, parts in self._parts.items() if key[:2] != (model, oldest)}
                for family in self._families.values():
                    family.forget(partial(_is_of, model=model, version=oldest, path=its_path))
        return True

    def before_reading(self, fetch: Callable[[], None]) -> None:
        """Calls a function, without the lock, before the series are read: it adds what is counted elsewhere."""
        self._before_reading.append(fetch)

    def add_requests(
        self,
        model: str,
        *,
        api: str,
        entrypoint: str,
        counts: Sequence[int],
        native: Native,
        exemplars: Iterable[tuple[int, Exemplar]] = (),
    ) -> None:
        """Records requests that succeeded and were counted elsewhere; see :meth:`record_request`."""
        requests, latency = self._request_series(model, api, entrypoint, "OK")
        requests.add(sum(counts))
        if latency is not None:
            latency.merge(native, counts, exemplars)

    def add_failures(self, model: str, *, api: str, entrypoint: str, status: str, count: int) -> None:
        """Records requests that failed and were counted elsewhere; see :meth:`record_request`."""
        self._request_series(model, api, entrypoint, status)[0].add(count)

    def snapshot(self) -> Snapshot:
        for fetch in self._before_reading:
            fetch()
        with self._lock:
            readers = [(name, read) for name, family in self._families.items() for read in family.readers]
        # Readers may take locks of their own.
        read_now = [(name, list(read())) for name, read in readers]
        with self._lock:
            found: Snapshot = {
                name: [
                    *((labels, counter.value) for labels, counter in family.counters.items()),
                    *((labels, read()) for labels, read in family.gauges.items()),
                    *((labels, histogram.value()) for labels, histogram in family.histograms.items()),
                ]
                for name, family in self._families.items()
            }
        for name, values in read_now:
            found[name].extend((tuple(labels.items()), value) for labels, value in values)
        return found


def _is_of(labels: Labels, model: str, version: int, path: str) -> bool:
    values = dict(labels)
    if "version" in values:
        return (values.get("model"), values["version"]) == (model, str(version))
    return values.get("model_path") == path
