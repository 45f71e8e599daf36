"""Counters of several processes, added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from modelyard.serving.metrics._exposition import Snapshot


def merged(snapshots: Sequence[Snapshot], *, gauges: bool = True) -> Snapshot:
    """The sums of several snapshots.

    Args:
        snapshots: Each of another process.
        gauges: Keep what says how things are now; False for processes that are no more.
    """
    found: dict[str, dict[tuple[Any, ...], list[Any]]] = {}
    for snapshot in snapshots:
        for name, rows in snapshot.items():
            series = found.setdefault(name, {})
            for kind, labels, number in rows:
                if kind == "gauge" and not gauges:
                    continue
                key = (kind, *(tuple(pair) for pair in labels))
                known = series.get(key)
                series[key] = [kind, labels, number if known is None else _sum(kind, known[2], number)]
    return {name: list(series.values()) for name, series in found.items()}


def _sum(kind: str, one: Any, other: Any) -> Any:
    if kind != "histogram":
        return one + other
    return [[a + b for a, b in zip(one[0], other[0], strict=True)], one[1] + other[1]]
