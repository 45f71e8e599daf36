"""A rule in force: which target a request goes to, and which are rolled back."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from modelyard.errors import InvalidModelSpecError
from modelyard.serving.config import TrafficRule, TrafficTarget
from modelyard.serving.requests import Caller, ModelSpec
from modelyard.serving.rollout._samples import Samples, Window

#: The version that a spec means, where it can answer now; else None.
Resolve = Callable[[ModelSpec], int | None]
#: Name, version, label, the version that it is now, share, and whether it is rolled back.
_CoreTarget = tuple[str, int | None, str | None, int | None, float, bool]


@dataclass(kw_only=True)
class TargetState:
    """One target of a rule in force."""

    target: TrafficTarget
    #: Its share by the file; 0 of a shadow that is in no split.
    weight: float
    window: Window
    #: The version that it was when it was last looked at; None where that cannot answer.
    serving: int | None = None
    #: Why it gets no more requests; empty where it does.
    rolled_back: str = ""

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def share(self) -> float:
        """What it gets now, where it is not the stable one."""
        return 0.0 if self.rolled_back else self.weight

    def spec(self, model: str) -> ModelSpec:
        return ModelSpec(name=model, version=self.target.version, label=self.target.label)


@dataclass(kw_only=True)
class RuleState:
    """A rule in force."""

    rule: TrafficRule
    #: By name: the split in its order, and the shadow where it is in none.
    targets: dict[str, TargetState] = field(init=False)
    split: list[TargetState] = field(init=False)

    def __post_init__(self) -> None:
        shares = dict(self.rule.split)
        window_s = self.rule.limits.window_s
        self.targets = {
            each.name: TargetState(target=each, weight=shares.get(each, 0.0), window=Window(window_s))
            for each in self.rule.targets
        }
        self.split = [self.targets[target.name] for target, _ in self.rule.split]

    @property
    def stable(self) -> TargetState:
        return self.split[0]

    def share(self, target: TargetState, resolve: Resolve) -> float:
        """The share that a target has now: none where it cannot answer; the stable one has what the others leave."""
        if target is self.stable:
            return 1.0 - sum(self.share(each, resolve) for each in self.split[1:])
        return 0.0 if resolve(target.spec(self.rule.model)) is None else target.share

    @property
    def for_core(self) -> tuple[str, str, str, float, list[_CoreTarget]]:
        """The rule as the native core takes it; see ``set_traffic``."""
        targets = [
            (each.name, each.target.version, each.target.label, each.serving, each.weight, bool(each.rolled_back))
            for each in self.split
        ]
        rule = self.rule
        return rule.model, rule.version_header, rule.sticky_header, self.shadow_share, targets

    @property
    def shadow(self) -> TargetState | None:
        """The shadow; None where there is none, or it is rolled back."""
        if self.rule.shadow is None:
            return None
        state = self.targets[self.rule.shadow.target.name]
        return None if state.rolled_back else state

    @property
    def shadow_share(self) -> float:
        """Share of the requests that the shadow computes; 0 without one."""
        return 0.0 if self.rule.shadow is None or self.shadow is None else self.rule.shadow.share

    def named(self, caller: Caller | None) -> TargetState | None:
        """The target that a request names by its header; None where it names none."""
        rule = self.rule
        name = caller.header(rule.version_header) if caller is not None and rule.version_header else ""
        if not name:
            return None
        for state in self.split:
            if state.name == name:
                return self.stable if state.rolled_back else state
        raise InvalidModelSpecError(
            f"{rule.version_header}: {name!r} is no version of model {rule.model!r} that the header may name; expected "
            f"one of {', '.join(state.name for state in self.split)}."
        )

    def draw(self, caller: Caller | None) -> TargetState:
        """The target of a request that names none."""
        number = None
        if caller is not None and self.rule.sticky_header and (key := caller.header(self.rule.sticky_header)):
            number = fraction_of(self.rule.model, key)
        elif caller is not None:
            # Another draw would give a version whose requests all come from the native core the square of its share.
            number = caller.drawn
        if number is None:
            # Not for secrets: it spreads requests.
            number = random.random()  # noqa: S311
        for state in self.split[1:]:
            # By the file: what is rolled back keeps its place, or the sticky keys of those behind it would move.
            number -= state.weight
            if number < 0:
                return self.stable if state.rolled_back else state
        return self.stable

    def judge(self) -> Iterator[tuple[TargetState, str, str]]:
        """Targets that have gone beyond a limit, which one, and a sentence about it."""
        limits = self.rule.limits
        stable = self.stable.window.total()
        for state in self.targets.values():
            if state is self.stable or state.rolled_back:
                continue
            seen = state.window.total()
            for limit, reason in _excesses(self, seen, stable):
                yield state, limit, f"{reason}, in the last {limits.window_s:g} s"
                break


def _excesses(traffic: RuleState, seen: Samples, stable: Samples) -> Iterator[tuple[str, str]]:
    limits, name = traffic.rule.limits, traffic.stable.name
    enough = seen.requests >= limits.min_samples
    if limits.max_error_rate is not None and enough and seen.error_rate > stable.error_rate + limits.max_error_rate:
        yield (
            "max_error_rate",
            f"{seen.failed} of {seen.requests} requests failed, {seen.error_rate:.3g} of all, and "
            f"{stable.error_rate:.3g} of those of {name}: more than max_error_rate: {limits.max_error_rate:g} beyond",
        )
    if limits.max_p99_ms is not None and seen.timed >= limits.min_samples and seen.p99_ms > limits.max_p99_ms:
        yield (
            "max_p99_ms",
            f"the 99th percentile of the latency of {seen.timed} requests is {seen.p99_ms:.3g} ms: more than "
            f"max_p99_ms: {limits.max_p99_ms:g}",
        )
    ratio = seen.mean_ms / stable.mean_ms if stable.mean_ms else 0.0
    comparable = min(seen.timed, stable.timed) >= limits.min_samples
    if limits.max_latency_ratio is not None and comparable and ratio > limits.max_latency_ratio:
        yield (
            "max_latency_ratio",
            f"the mean latency of {seen.timed} requests is {seen.mean_ms:.3g} ms, {ratio:.3g} times the "
            f"{stable.mean_ms:.3g} ms of {name}: more than max_latency_ratio: {limits.max_latency_ratio:g}",
        )
    if (
        limits.max_disagreement is not None
        and seen.rows >= limits.min_samples
        and seen.disagreement > limits.max_disagreement
    ):
        yield (
            "max_disagreement",
            f"{seen.disagreed} of {seen.rows} rows were answered otherwise, or not at all, as a shadow, "
            f"{seen.disagreement:.3g} of all: more than max_disagreement: {limits.max_disagreement:g}",
        )


def fraction_of(model: str, key: str) -> float:
    """Where a sticky key always falls, from 0 to 1: the same in every process, and in the native core."""
    digest = hashlib.sha256(model.encode() + b"\0" + key.encode("latin-1", "replace")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / (1 << 53)
