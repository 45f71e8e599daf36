"""Two servers or two builds against each other, in alternating rounds, so that the machine's moods hit both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from modelyard.errors import LoadTestError
from modelyard.loadtests._limits import Check, Measured
from modelyard.loadtests._requests import Request
from modelyard.loadtests._session import Session
from modelyard.loadtests._shapes import constant
from modelyard.loadtests._statistics import Interval, ratio

#: Where no rate is given: this share of what the slower one can do.
_SHARE = 0.5
METRICS = ("throughput", "p50", "p95", "p99")


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """How to compare.

    Attributes:
        rounds: Pairs of runs; two or more.
        round_s: Length of each half of a run (closed loop, open loop), in seconds.
        rate: Requests per second of the open loop; None for half of what the slower one can do.
        in_flight: Requests at the same time in the closed loop.
    """

    rounds: int = 6
    round_s: float = 3.0
    rate: float | None = None
    in_flight: int = 16


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What was found: how many times as much B has as A.

    Attributes:
        ratios: By metric: throughput of the closed loop (more is better), and
            percentiles of the open loop's latency (less is better).
        rate: Of the open loop.
        rounds: What each round measured: name of the server, metric and value.
        measured: A row for each server: the open loop of its last round.
    """

    ratios: dict[str, Interval]
    rate: float
    rounds: tuple[dict[str, float | str], ...]
    measured: tuple[Measured, Measured]

    def text(self) -> str:
        """A line for each metric."""
        lines = [
            f"B / A, 95 % intervals of {len(self.rounds) // 2} pairs; open loop at {self.rate:.0f} requests per second"
        ]
        for name, found in self.ratios.items():
            better = found.low > 1 if name == "throughput" else found.high < 1
            worse = found.high < 1 if name == "throughput" else found.low > 1
            verdict = "B is better" if better else "B is worse" if worse else "no difference shown"
            lines.append(f"{name:>10}  {found.value:6.3f}  ({found.low:.3f} to {found.high:.3f})  {verdict}")
        return "\n".join(lines)

    def checks(self, *, min_throughput_ratio: float | None, max_latency_ratio: float | None) -> list[Check]:
        """Holds the ratios against limits; one is broken only where the whole interval is beyond it.

        Args:
            min_throughput_ratio: Least ratio of the throughputs.
            max_latency_ratio: Greatest ratio of each percentile.
        """
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
    """Compares two servers.

    Args:
        first: Connections to A.
        second: Connections to B.
        requests: What A and B are sent.
        options: How to compare.
        tell: Told what each round measured.

    Raises:
        LoadTestError: A server gave wrong answers or none.
    """
    sides = (("A", first, requests[0]), ("B", second, requests[1]))
    rate = options.rate
    if rate is None:
        tops = []
        for name, session, sent in sides:
            log = await session.generator.closed(sent, in_flight=options.in_flight, seconds=min(options.round_s, 2.0))
            tops.append(_sound(name, log.measured()).answered_per_s)
        rate = min(tops) * _SHARE
    rounds: list[dict[str, float | str]] = []
    rows: dict[str, Measured] = {}
    values: dict[str, list[dict[str, float]]] = {"A": [], "B": []}
    for number in range(options.rounds):
        # A B B A: neither is always the one that finds the machine warm.
        for name, session, sent in sides if number % 2 == 0 else sides[::-1]:
            closed = await session.generator.closed(
                sent, in_flight=options.in_flight, seconds=options.round_s, seed=number
            )
            run = await session.open(constant(rate, options.round_s), sent, seed=number)
            row = rows[name] = _sound(name, run.log.measured(name))
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
    return Comparison(ratios=ratios, rate=rate, rounds=tuple(rounds), measured=(rows["A"], rows["B"]))


def _sound(name: str, row: Measured) -> Measured:
    if row.requests == row.failures:
        raise LoadTestError(f"{name} gave no right answer in a whole round: there is nothing to compare.")
    return row
