"""From measurements to the way in which a version is served. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from modelyard.artifact import Latency, RuntimeChoice
from modelyard.errors import ConfigurationError
from modelyard.export.publish import PRECISIONS, RUNTIMES

#: What is slower than the fastest by no more than this is as fast: the figures of two runs differ by as much.
SAME = 1.1
FALLBACK = "tensorflow"


def rank_runtimes(
    latency: Iterable[Latency], *, signature: str, runtime: str | None = None
) -> tuple[RuntimeChoice, ...]:
    """The best way to serve with each runtime, the fastest first.

    What counts is the median time of one row. Among settings of a runtime that are as fast as its fastest within 10 %,
    the one with fewer threads is taken, and then the more precise one. Among runtimes that are as fast as the fastest
    within 10 %, the first is the one with more examples per second in large batches, and where those are the same
    within 10 % too, the first of :data:`RUNTIMES`: two exports of one model shall choose alike. TensorFlow comes last
    however fast it is: it is what the others are there to replace.
    """
    measured = [each for each in latency if each.signature == signature]
    rows: dict[str, list[Latency]] = {}
    for each in measured:
        if each.batch_size == 1:
            rows.setdefault(each.runtime, []).append(each)
    if runtime is not None and runtime not in rows:
        raise ConfigurationError(
            f"The runtime {runtime} was asked for, but nothing that was verified runs in it; "
            f"there is {' and '.join(rows) or 'none'}. It may not be installed, or its formats not asked for."
        )
    upstream = min((each.p50_us for each in rows.get(FALLBACK, [])), default=None)
    best = [_best(found) for found in rows.values()]
    first = runtime or _first([each for each in best if each.runtime != FALLBACK], measured)
    best.sort(key=lambda each: (each.runtime != first, each.runtime == FALLBACK, each.p50_us))
    return tuple(
        RuntimeChoice(
            runtime=each.runtime,
            format=each.format,
            precision=each.precision,
            threads=each.threads,
            p50_us=each.p50_us,
            speedup=None if upstream is None else upstream / each.p50_us,
        )
        for each in best
    )


def _first(best: Sequence[Latency], measured: Sequence[Latency]) -> str | None:
    """The runtime to serve with."""
    if not best:
        return None
    fastest = min(each.p50_us for each in best)
    same = [each for each in best if each.p50_us <= SAME * fastest]
    rates = [_rate(each, measured) for each in same]
    most = max(rates)
    # Where there was no time for larger batches of one of them, they say nothing.
    if min(rates) > 0:
        same = [each for each, rate in zip(same, rates, strict=True) if rate * SAME >= most]
    order = [str(name) for name in RUNTIMES]
    return min(same, key=lambda each: order.index(each.runtime)).runtime


def _rate(chosen: Latency, measured: Sequence[Latency]) -> float:
    """Examples per second in larger batches; 0 where that was not measured."""
    place = (chosen.format, chosen.precision, chosen.runtime, chosen.threads)
    rates = [
        each.examples_per_s or 0.0
        for each in measured
        if each.batch_size > 1 and (each.format, each.precision, each.runtime, each.threads) == place
    ]
    return max(rates, default=0.0)


def _best(rows: Sequence[Latency]) -> Latency:
    fastest = min(each.p50_us for each in rows)
    order = {name: index for index, name in enumerate(PRECISIONS)}
    return min(
        (each for each in rows if each.p50_us <= SAME * fastest),
        key=lambda each: (each.threads, order[each.precision] if each.precision in order else len(order), each.p50_us),
    )
