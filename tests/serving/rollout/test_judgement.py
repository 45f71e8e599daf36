"""Windows of samples, and when a target is beyond a limit."""

from __future__ import annotations

import pytest

from modelyard.serving.config import RollbackLimits, TrafficRule, TrafficShadow, TrafficTarget
from modelyard.serving.requests import Caller
from modelyard.serving.rollout._samples import Window
from modelyard.serving.rollout._state import RuleState

STABLE, CANARY = TrafficTarget(version=1), TrafficTarget(label="canary")


def state(limits: RollbackLimits) -> RuleState:
    shadow = TrafficShadow(target=CANARY, share=1.0)
    split = ((STABLE, 0.75), (CANARY, 0.25))
    return RuleState(rule=TrafficRule(model="m", split=split, sticky_header="x-user", shadow=shadow, limits=limits))


def fill(window: Window, *, ok: int = 0, failed: int = 0, ms: float = 1.0) -> None:
    for _ in range(ok):
        window.request(ok=True, seconds=ms / 1e3)
    for _ in range(failed):
        window.request(ok=False, seconds=None)


def verdicts(found: RuleState) -> list[tuple[str, str]]:
    return [(target.name, limit) for target, limit, _ in found.judge()]


def test_a_window_forgets() -> None:
    window = Window(10.0)
    fill(window, ok=2, failed=1)
    window.move(100.0)
    fill(window, ok=1)
    window.move(105.0)
    assert (window.total().requests, window.total().error_rate) == (4, 0.25)
    window.move(111.0)
    assert window.total().requests == 1
    window.clear()
    assert window.total().requests == 0
    assert (window.total().mean_ms, window.total().p99_ms, window.total().disagreement) == (0.0, 0.0, 0.0)


def test_percentiles_are_within_a_bucket() -> None:
    window = Window(10.0)
    fill(window, ok=980, ms=1.0)
    fill(window, ok=20, ms=30.0)
    # Bounds are 1.8 apart.
    assert 30 / 1.8 <= window.total().p99_ms <= 30 * 1.8
    assert window.total().mean_ms == pytest.approx(0.98 + 0.6)


def test_errors_count_beyond_those_of_the_stable_version() -> None:
    found = state(RollbackLimits(max_error_rate=0.1, min_samples=20))
    stable, canary = found.targets["1"].window, found.targets["canary"].window
    fill(canary, ok=10, failed=9)
    assert verdicts(found) == []
    fill(canary, failed=1)
    assert verdicts(found) == [("canary", "max_error_rate")]
    # What callers do wrong fails everywhere.
    fill(stable, ok=50, failed=50)
    assert verdicts(found) == []


def test_latency_is_compared_where_both_have_enough() -> None:
    found = state(RollbackLimits(max_latency_ratio=2.0, min_samples=20))
    stable, canary = found.targets["1"].window, found.targets["canary"].window
    fill(canary, ok=30, ms=5.0)
    fill(stable, ok=19, ms=2.0)
    assert verdicts(found) == []
    fill(stable, ok=1, ms=2.0)
    assert verdicts(found) == [("canary", "max_latency_ratio")]
    fill(stable, ok=20, ms=4.0)
    assert verdicts(found) == []


def test_rows_of_a_shadow_are_judged() -> None:
    found = state(RollbackLimits(max_disagreement=0.25, min_samples=20))
    window = found.targets["canary"].window
    window.shadow(rows=16, disagreed=8, max_error=0.5)
    assert verdicts(found) == []
    window.shadow(rows=4, disagreed=0, max_error=0.25)
    assert verdicts(found) == [("canary", "max_disagreement")]
    assert window.total().max_error == 0.5
    window.shadow(rows=20, disagreed=1, max_error=0.0)
    assert verdicts(found) == []


def test_who_is_rolled_back_is_drawn_no_more() -> None:
    found = state(RollbackLimits())
    users = [Caller(header={"x-user": f"user-{number}"}.get) for number in range(100)]  # type: ignore[arg-type]
    drawn = {found.draw(user).name for user in users}
    assert drawn == {"1", "canary"}
    assert found.shadow is found.targets["canary"]
    found.targets["canary"].rolled_back = "it was wrong"
    assert {found.draw(user).name for user in users} == {"1"}
    assert [found.share(target, lambda _: 2) for target in found.split] == [1.0, 0.0]
    shadows = [found.shadow]
    assert shadows == [None]
    assert verdicts(found) == []


def test_what_the_transport_has_drawn_is_the_draw() -> None:
    found = state(RollbackLimits())

    def draw(drawn: float | None, header: str = "") -> set[str]:
        caller = Caller(drawn=drawn, header=lambda name: header if name == "x-modelyard-ticket" else "")
        return {found.draw(caller).name for _ in range(60)}

    assert (draw(0.2), draw(0.3)) == ({"canary"}, {"1"})
    # A header is whatever a client has sent.
    assert draw(None, "0.2") == {"1", "canary"}


def test_requests_without_an_answer_in_time_are_slow_and_failures() -> None:
    found = state(RollbackLimits(max_p99_ms=50.0, min_samples=20))
    canary = found.targets["canary"].window
    for _ in range(19):
        canary.request(ok=False, seconds=0.1)
    # What fails at once says nothing of the latency.
    fill(canary, failed=1)
    assert verdicts(found) == []
    canary.request(ok=False, seconds=0.1)
    assert verdicts(found) == [("canary", "max_p99_ms")]
    assert (canary.total().requests, canary.total().failed) == (21, 21)
