"""Two servers or two builds against each other, in alternating rounds, so that changes of the machine affect both."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from modelyard.errors import LoadTestError
from modelyard.loadtests.compare._statistics import Interval, ratio
from modelyard.loadtests.generate import Session
from modelyard.loadtests.options import Check, Measured, constant
from modelyard.loadtests.traffic import Request

#: Where no rate is given: this share of what the slower one can do.
_SHARE = 0.5
METRICS = ("throughput", "p50", "p95", "p99")


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """How to compare two servers."""

    #: Pairs of runs; two or more.
    rounds: int = 6
    #: Length of each half of a run (closed loop, open loop), in seconds.
    round_s: float = 3.0
    #: Requests per second of the open loop; None for half of what the slower one can do.
    rate: float | None = None
    #: Requests at the same time in the closed loop.
    in_flight: int = 16


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What was found: how many times as much B has as A."""

    #: By metric: throughput of the closed loop (more is better), and percentiles of the open loop's latency (less is
    #: better).
    ratios: dict[str, Interval]
    #: By metric what A and B had: the geometric mean of the rounds.
    values: dict[str, tuple[float, float]]
    #: Of the open loop.
    rate: float
    #: What each round measured: name of the server, metric and value.
    rounds: tuple[dict[str, float | str], ...]
    #: A row for each server: its open loops together, with the mean percentiles.
    measured: tuple[Measured, Measured]

    def verdict(self, name: str) -> str:
        """Whether a metric's interval shows B to be better or worse."""
        found = self.ratios[name]
        if found.low <= 1 <= found.high:
            return "no difference shown"
        return "B is better" if (found.low > 1) is (name == "throughput") else "B is worse"

    def text(self) -> str:
        """The verdict in a sentence."""
        parts = []
        for verdict in ("B is worse", "B is better"):
            names = [name for name in METRICS if self.verdict(name) == verdict]
            parts += [f"{verdict}: {', '.join(names)}"] if names else []
        found = "; ".join(parts) or "no difference between A and B is shown"
        return f"{found} ({len(self.rounds) // 2} pairs of rounds; open loop at {self.rate:.0f} requests per second)."

    @property
    def worse(self) -> str:
        """``B is worse`` where it is in anything, else nothing."""
        return next((verdict for verdict in map(self.verdict, METRICS) if verdict == "B is worse"), "")

    def table(self) -> list[dict[str, str]]:
        """A row for each metric."""
        rows = []
        for name, found in self.ratios.items():
            metric = "throughput /s" if name == "throughput" else f"{name} ms"
            a, b = self.values[name]
            rows.append(
                {
                    "metric": metric, "A": f"{a:.4g}", "B": f"{b:.4g}", "B / A": f"{found.value:.3g}",
                    "95 % interval": f"{found.low:.3g} to {found.high:.3g}", "verdict": self.verdict(name),
                }
            )  # fmt: skip
        return rows

    def checks(self, *, min_throughput_ratio: float | None, max_latency_ratio: float | None) -> list[Check]:
        """Holds the ratios against limits; one is broken only where the whole interval is beyond it."""
        found = []
        for name, interval in self.ratios.items():
            limit = min_throughput_ratio if name == "throughput" else max_latency_ratio
            if limit is None:
                continue
            kept = interval.high >= limit if name == "throughput" else interval.low <= limit
            text = f"B / A is {interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f}); the limit is {limit:g}"
            found.append(
                Check(subject="B / A", name=f"{name}_ratio", limit=limit, value=interval.value, kept=kept, text=text)
            )
        return found


async def compare(
    first: Session,
    second: Session,
    requests: tuple[Sequence[Request], Sequence[Request]],
    options: CompareOptions,
    *,
    tell: Callable[[str], None],
) -> Comparison:
    """Compare A and B by closed and open loops; an error where one gives no right answer in a round."""
    sides = (("A", first, requests[0]), ("B", second, requests[1]))
    rate = options.rate
    if rate is None:
        tops = []
        for name, session, sent in sides:
            log = await session.generator.closed(sent, in_flight=options.in_flight, seconds=min(options.round_s, 2.0))
            tops.append(_sound(name, log.measured()).answered_per_s)
        rate = min(tops) * _SHARE
    rounds: list[dict[str, float | str]] = []
    rows: dict[str, list[Measured]] = {"A": [], "B": []}
    values: dict[str, list[dict[str, float]]] = {"A": [], "B": []}
    for number in range(options.rounds):
        # A B B A: neither is always the one that finds the machine warm.
        for name, session, sent in sides if number % 2 == 0 else sides[::-1]:
            closed = await session.generator.closed(
                sent, in_flight=options.in_flight, seconds=options.round_s, seed=number
            )
            run = await session.open(constant(rate, options.round_s), sent, seed=number)
            row = _sound(name, run.log.measured(name))
            rows[name].append(row)
            values[name].append(
                {
                    "throughput": _sound(name, closed.measured()).answered_per_s,
                    "p50": row.p50_ms,
                    "p95": row.p95_ms,
                    "p99": row.p99_ms,
                }
            )
            rounds.append({"round": number + 1, "server": name, **values[name][-1]})
            last = values[name][-1]
            tell(
                f"round {number + 1} {name}: {last['throughput']:.0f}/s; at {rate:.0f}/s p50 {last['p50']:.2f}, "
                f"p95 {last['p95']:.2f}, p99 {last['p99']:.2f} ms"
            )
    ratios = {
        metric: ratio([(a[metric], b[metric]) for a, b in zip(values["A"], values["B"], strict=True)])
        for metric in METRICS
    }
    means = {
        metric: (
            statistics.geometric_mean(each[metric] for each in values["A"]),
            statistics.geometric_mean(each[metric] for each in values["B"]),
        )
        for metric in METRICS
    }
    together = [
        _together(rows[name], {metric: means[metric][index] for metric in METRICS}) for index, name in enumerate("AB")
    ]
    return Comparison(
        ratios=ratios, values=means, rate=rate, rounds=tuple(rounds), measured=(together[0], together[1])
    )  # fmt: skip


def _together(rows: Sequence[Measured], means: Mapping[str, float]) -> Measured:
    def total(name: str) -> int:
        return sum(getattr(row, name) for row in rows)

    return Measured(
        name=rows[0].name, requests=total("requests"), failures=total("failures"), refused=total("refused"),
        known=total("known"), matches=total("matches"), seconds=sum(row.seconds for row in rows),
        p50_ms=means["p50"], p95_ms=means["p95"], p99_ms=means["p99"],
    )  # fmt: skip


def _sound(name: str, row: Measured) -> Measured:
    if row.requests == row.failures:
        raise LoadTestError(f"{name} gave no right answer in a whole round: there is nothing to compare.")
    return row
