"""The server's own view: how long its requests took inside, and how much of that was the runtime or a queue."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from modelyard.loadtests.generate._outcomes import Outcome
from modelyard.loadtests.generate._sender import Answer, Sender
from modelyard.loadtests.traffic import Request

#: Time between two looks.
_EVERY_S = 1.0
#: A server that does not answer so long is not looked at.
_PATIENCE_S = 2.0
METRICS_PATH = "/monitoring/prometheus/metrics"
_SUM = re.compile(r"^(:?[A-Za-z_:0-9]+)_(sum|count)(?:\{.*\})? (\d\S*)$", re.MULTILINE)
_REQUEST = ":tensorflow:serving:request_latency"
_RUNTIME = ":tensorflow:serving:runtime_latency"
_QUEUE = ":tensorflow:serving:batching_session:queuing_latency"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One look at the server's metrics."""

    #: Seconds since the begin of the run.
    at_s: float
    #: Microseconds by name of the histogram, over all its series.
    sums: Mapping[str, float]
    #: Observations by name of the histogram.
    counts: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Split:
    """Where the time of requests went inside the server, on average, between two looks."""

    #: First look, in seconds since the begin of the run.
    begin_s: float
    #: Second look.
    end_s: float
    #: Requests that the server answered in between.
    requests: int
    #: Time of a request inside the server.
    total_ms: float
    #: Of that, inside the runtime.
    compute_ms: float
    #: Of that, waiting for a batch to be put together.
    queue_ms: float
    #: The rest: waiting for a thread, decoding and encoding.
    rest_ms: float


def parse_page(page: str, at_s: float) -> Sample:
    """Reads a Prometheus text page; what is no number there, or none of a sum, is left out."""
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for name, what, value in _SUM.findall(page):
        table = sums if what == "sum" else counts
        try:
            total = table.get(name, 0.0) + float(value)
        except ValueError:
            continue
        if math.isfinite(total):
            table[name] = total
    return Sample(at_s=at_s, sums=sums, counts=counts)


def splits(samples: Sequence[Sample]) -> list[Split]:
    """Where the time went between one look and the next."""
    found = []
    for before, after in zip(samples, samples[1:], strict=False):
        requests = after.counts.get(_REQUEST, 0) - before.counts.get(_REQUEST, 0)
        if requests <= 0:
            continue
        total, compute, queue = (
            (after.sums.get(name, 0) - before.sums.get(name, 0)) / requests / 1000
            for name in (_REQUEST, _RUNTIME, _QUEUE)
        )
        rest = max(total - compute - queue, 0.0)
        found.append(
            Split(
                begin_s=before.at_s, end_s=after.at_s, requests=int(requests), total_ms=total, compute_ms=compute,
                queue_ms=queue, rest_ms=rest,
            )
        )  # fmt: skip
    return found


class Watcher:
    """Looks at the metrics page while a run lasts, if there is one."""

    def __init__(self, sender: Sender | None) -> None:
        self._sender = sender
        self.samples: list[Sample] = []

    async def watch(self, begin: float) -> None:
        """Looks until it is cancelled, or finds that there is no page."""
        while await self.look(begin):
            await asyncio.sleep(_EVERY_S)

    async def look(self, begin: float) -> bool:
        """Looks once; False where there is no page."""
        if self._sender is None:
            return False
        answer: asyncio.Future[tuple[Outcome, Answer]] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome, body: Answer) -> None:
            if not answer.done():
                answer.set_result((outcome, body))

        cancel = self._sender.send(Request(kind="metrics", api="rest", path=METRICS_PATH, body=None), done)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                outcome, body = await answer
        except TimeoutError:
            return False
        finally:
            # The next look takes the same connection.
            cancel()
        if outcome is not Outcome.OK or not isinstance(body, bytes):
            return False
        self.samples.append(parse_page(body.decode(errors="replace"), time.perf_counter() - begin))
        return True
