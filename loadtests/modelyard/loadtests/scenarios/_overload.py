"""The scenario ``overload``: more than the server can do, in rounds between closed loops."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Sequence

import numpy as np

from modelyard.loadtests.generate import Log, Run, run_precisely, session
from modelyard.loadtests.options import Measured, constant
from modelyard.loadtests.report import Report
from modelyard.loadtests.scenarios._stage import IN_FLIGHT, Stage

#: Length of a round: long enough for the queue to fill, and short enough for the machine to stay as it is.
_ROUND_S = 5.0


def overload(stage: Stage) -> Report:
    """Offers more than the server can do; how much that is, is measured before and after every round."""
    kinds = stage.traffic.kinds(stage.load, (stage.traffic.kind("grpc", "image_bytes"),))
    rows = max(stage.load.rows, 8) if stage.traffic.takes_rows(kinds) else stage.load.rows
    requests = stage.requests(kinds, rows=rows)
    rounds = max(round(stage.seconds / _ROUND_S), 1)

    async def main() -> tuple[list[Run], list[Measured]]:
        runs = []
        async with session(stage.load, requests) as opened:
            rate, row = await stage.rate(opened, requests)
            closed = [row]
            for number in range(rounds):
                shape = constant(rate, stage.seconds / rounds)
                runs.append(await opened.open(shape, requests, seed=stage.options.seed + number))
                rate, row = await stage.rate(opened, requests)
                closed.append(row)
        return runs, closed

    runs, closed = run_precisely(main())
    runs = [_whole(run) for run in runs]
    shares = []
    for run, before, after in zip(runs, closed[:-1], closed[1:], strict=True):
        row, capacity = run.log.measured(), (before.answered_per_s + after.answered_per_s) / 2
        shares.append(row.answered_per_s / capacity)
        stage.notes.append(
            f"Of {row.requests} requests at {row.requests / stage.seconds * rounds:.0f}/s the server refused "
            f"{row.refused} and answered {row.requests - row.failures} rightly, {row.answered_per_s:.1f}/s: "
            f"{shares[-1]:.1%} of the {capacity:.1f}/s of the closed loops before and after."
        )
    total = joined(runs)
    text = f"open loop, Poisson arrivals, {len(total.log.ok) / stage.seconds:.1f} requests per second on average"
    plan = {
        "load": f"{text}, for {stage.seconds:g} s",
        "rounds": f"{rounds}, a closed loop of {IN_FLIGHT} in flight before and after each",
    }
    middle = statistics.median(each.answered_per_s for each in closed)
    return stage.report(total, {**plan, "capacity": f"{middle:.1f} right answers per second"}, goodput=shares)


def _whole(run: Run) -> Run:
    """What is answered after the last request was due is work of the run, too: the backlog counts as time."""
    log = run.log
    length = max(log.seconds, float(log.done[log.ok].max(initial=0.0)))
    return dataclasses.replace(run, log=dataclasses.replace(log, seconds=length))


def joined(runs: Sequence[Run]) -> Run:
    """Runs of the same kinds of request as one, each after the one before."""
    starts = np.cumsum([0.0, *(run.log.seconds for run in runs)]).tolist()
    placed = list(zip(runs, starts, strict=False))
    logs = [run.log for run in runs]
    kinds = tuple(dict.fromkeys(kind for log in logs for kind in log.kinds))
    log = Log(
        kinds=kinds,
        kind=np.concatenate([np.array([kinds.index(each) for each in log.kinds], np.uint16)[log.kind] for log in logs]),
        intended=np.concatenate([run.log.intended + start for run, start in placed]),
        sent=np.concatenate([run.log.sent + start for run, start in placed]),
        done=np.concatenate([run.log.done + start for run, start in placed]),
        outcome=np.concatenate([log.outcome for log in logs]),
        rows=np.concatenate([log.rows for log in logs]),
        matches=np.concatenate([log.matches for log in logs]),
        seconds=starts[-1],
        reasons=sum((Counter(log.reasons) for log in logs), Counter()),
    )
    return Run(
        log=log,
        server=tuple(
            dataclasses.replace(split, begin_s=split.begin_s + start, end_s=split.end_s + start)
            for run, start in placed
            for split in run.server
        ),
        events=tuple((at + start, text) for run, start in placed for at, text in run.events),
        generator_cpu=sum(run.generator_cpu * run.log.seconds for run in runs) / starts[-1],
    )
