"""Schedules of a pipeline: which pass comes next on which stage. Plain numbers, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

Schedule = Literal["sequential", "grouped", "interleaved"]
SCHEDULES: tuple[str, ...] = get_args(Schedule)


class Pass(NamedTuple):
    """One micro-batch through one stage, forwards or backwards; both are numbered from 0."""

    stage: int
    micro: int
    backward: bool


def stage_order(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> list[Pass]:
    """The passes of one stage, in the order in which it runs them."""
    # How many micro-batches have gone forwards before the first one comes back.
    ahead = {"sequential": 1, "grouped": micro_batches, "interleaved": min(stages - stage, micro_batches)}[schedule]
    order = [Pass(stage, micro, False) for micro in range(ahead)]
    for micro in range(micro_batches):
        order.append(Pass(stage, micro, True))
        if micro + ahead < micro_batches:
            order.append(Pass(stage, micro + ahead, False))
    return order


def issue_order(orders: Sequence[Sequence[Pass]]) -> list[Pass]:
    """One order for all stages in which every pass comes after those that it needs."""
    waiting = [list(order) for order in orders]
    done: set[Pass] = set()
    issued: list[Pass] = []
    while any(waiting):
        ready = [order[0] for order in waiting if order and _needs(order[0], len(orders)) <= done]
        for item in ready:
            waiting[item.stage].pop(0)
        done.update(ready)
        issued.extend(ready)
    return issued


def _needs(item: Pass, stages: int) -> set[Pass]:
    if not item.backward:
        return {Pass(item.stage - 1, item.micro, False)} if item.stage else set()
    own = {Pass(item.stage, item.micro, False)}
    return own | ({Pass(item.stage + 1, item.micro, True)} if item.stage + 1 < stages else set())
