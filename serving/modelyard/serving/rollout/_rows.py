"""What traffic rules do at present, as rows for the console and the API."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from modelyard.serving.rollout._state import Resolve, RuleState, TargetState


@dataclass(frozen=True, kw_only=True)
class TrafficRow:
    """One target of one model's rule."""

    model: str
    target: str
    #: The version that it is now; None where that cannot answer.
    version: int | None
    #: ``stable``, ``canary`` or ``shadow``; a canary that is the shadow, too, is a canary.
    role: str
    #: ``serving``, ``not loaded``, ``rolled back``, or ``waiting`` for a rule that begins when its stable version can
    #: answer.
    state: str
    #: Its share by the file, from 0 to 1.
    weight: float
    share: float
    #: Why it is rolled back; empty where it is not.
    reason: str
    #: In the rule's window; so are the next ones.
    requests: int
    failed: int
    mean_ms: float
    p99_ms: float
    shadow_rows: int
    disagreed: int
    max_error: float


def row_of(rule: RuleState, target: TargetState, resolve: Resolve, *, waiting: bool = False) -> TrafficRow:
    seen = target.window.total()
    version = resolve(target.spec(rule.rule.model))
    state = "serving" if version is not None else "not loaded"
    if waiting or target.rolled_back:
        state = "waiting" if waiting else "rolled back"
    return TrafficRow(
        model=rule.rule.model,
        target=target.name,
        version=version,
        role="stable" if target is rule.stable else "canary" if target in rule.split else "shadow",
        state=state,
        weight=target.weight,
        share=0.0 if waiting else rule.share(target, resolve),
        reason=target.rolled_back,
        requests=seen.requests,
        failed=seen.failed,
        mean_ms=seen.mean_ms,
        p99_ms=seen.p99_ms,
        shadow_rows=seen.rows,
        disagreed=seen.disagreed,
        max_error=seen.max_error,
    )


def json_of(row: TrafficRow) -> Mapping[str, object]:
    """A row as JSON has it, which has no infinity: an error without end is null."""
    return asdict(row) | {"max_error": row.max_error if math.isfinite(row.max_error) else None}


def texts_of(row: TrafficRow) -> Mapping[str, str]:
    """A row as people read it: the same headings for each."""
    counted, compared = bool(row.requests), bool(row.shadow_rows)
    return {
        "Target": row.target,
        "Version": "–" if row.version is None else str(row.version),
        "Role": row.role,
        "State": f"{row.state}: {row.reason}" if row.reason else row.state,
        "Share": f"{row.share:.1%}" if row.share == row.weight else f"{row.share:.1%} (by the file {row.weight:.1%})",
        "Requests": str(row.requests),
        "Failed": f"{row.failed} ({row.failed / row.requests:.1%})" if counted else "–",
        "Latency": f"{row.mean_ms:.3g} ms, p99 {row.p99_ms:.3g} ms" if row.requests > row.failed else "–",
        "Disagreed as a shadow": f"{row.disagreed} of {row.shadow_rows} rows" if compared else "–",
        "Largest difference": f"{row.max_error:.3g}" if compared else "–",
    }
