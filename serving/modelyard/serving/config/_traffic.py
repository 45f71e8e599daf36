"""``--version_traffic_file``: which versions answer requests that name none."""

from __future__ import annotations

import argparse
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from modelyard.errors import ConfigurationError
from modelyard.serving.config._text_proto import read_text_proto
from modelyard.wire import traffic_pb2

FLAG = "--version_traffic_file"
#: A field name of HTTP that is a key of gRPC metadata, too.
_HEADER = re.compile(r"[a-z0-9_.-]{1,64}")
_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class TrafficTarget:
    """A version that requests may go to, by its number or by a label."""

    version: int | None = None
    label: str | None = None

    @property
    def name(self) -> str:
        """Its name in headers, metrics and the log."""
        return str(self.version) if self.label is None else self.label


@dataclass(frozen=True, kw_only=True)
class TrafficShadow:
    """The version that computes a share of the requests once more, after another one has answered them."""

    target: TrafficTarget
    share: float
    #: Largest difference of numbers that are no class scores.
    tolerance: float = _TOLERANCE


@dataclass(frozen=True, kw_only=True)
class RollbackLimits:
    """When a version is rolled back; None is no limit."""

    #: Failed requests of all, beyond the stable version's; from 0 to 1.
    max_error_rate: float | None = None
    #: Mean latency, divided by the stable version's.
    max_latency_ratio: float | None = None
    max_p99_ms: float | None = None
    #: Rows that a shadow answers otherwise, of all; from 0 to 1.
    max_disagreement: float | None = None
    #: Requests, or rows of a shadow, that are needed for a decision.
    min_samples: int = 100
    window_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class TrafficRule:
    """The versions that answer requests of one model that name neither a version nor a label."""

    model: str
    #: Targets and their shares, which sum to 1; the first is the stable one.
    split: tuple[tuple[TrafficTarget, float], ...]
    #: The header that names one of the split; empty for none.
    version_header: str = ""
    #: The header by whose value a request always gets the same target; empty for none.
    sticky_header: str = ""
    shadow: TrafficShadow | None = None
    limits: RollbackLimits = RollbackLimits()

    @property
    def stable(self) -> TrafficTarget:
        """The target that takes the share of others that are rolled back."""
        return self.split[0][0]

    @property
    def targets(self) -> tuple[TrafficTarget, ...]:
        """All of them, the shadow's included."""
        targets = dict.fromkeys(target for target, _ in self.split)
        return tuple(targets if self.shadow is None else targets | {self.shadow.target: None})

    @property
    def digest(self) -> str:
        """An identity of these rules that survives restarts."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    @property
    def versions(self) -> frozenset[int]:
        """The versions that it names by number."""
        return frozenset(target.version for target in self.targets if target.version is not None)


@dataclass(frozen=True, kw_only=True)
class TrafficOptions:
    """The file of traffic rules, and the one that keeps rollbacks over restarts."""

    path: Path
    state_file: Path | None = None


def traffic_options(args: argparse.Namespace) -> TrafficOptions | None:
    """The options that flags set; the rules are read once, so that errors in them are reported at the start."""
    state_file = Path(args.version_traffic_state_file) if args.version_traffic_state_file else None
    if not args.version_traffic_file:
        if state_file is not None:
            raise ConfigurationError(
                f"--version_traffic_state_file={state_file} was set without {FLAG}, whose rollbacks it keeps."
            )
        return None
    path = Path(args.version_traffic_file)
    read_traffic_file(path)
    return TrafficOptions(path=path, state_file=state_file)


def read_traffic_file(path: Path) -> Mapping[str, TrafficRule]:
    """The rules of a ``VersionTraffic`` in protobuf text format, by model."""
    message = read_text_proto(path, traffic_pb2.VersionTraffic(), flag=FLAG)
    rules: dict[str, TrafficRule] = {}
    if not message.model:
        # A file that is being written is empty for a moment.
        raise ConfigurationError(f'{FLAG}={path} is empty; expected model {{ name: "NAME" split {{ ... }} }}.')
    for item in message.model:
        where = f"{FLAG}={path}: model {item.name!r}"
        if not item.name:
            raise ConfigurationError(f"{FLAG}={path} has a model without a name.")
        if item.name in rules:
            raise ConfigurationError(f"{where} is there twice; expected one entry for each model.")
        rules[item.name] = _rule(item, where)
    return rules


def _rule(item: traffic_pb2.ModelTraffic, where: str) -> TrafficRule:
    if not item.split:
        raise ConfigurationError(
            f'{where} has no split; expected at least the stable version, such as split {{ label: "stable" }}.'
        )
    weights: dict[TrafficTarget, float] = {}
    for each in item.split:
        target = _target(each, f"{where}: split")
        if target.name in {known.name for known in weights}:
            raise ConfigurationError(f"{where}: split has {target.name} twice.")
        weights[target] = _number(each.weight, f"{where}: split {target.name}: weight")
    whole = sum(weights.values())
    if whole and not item.split[0].HasField("weight"):
        raise ConfigurationError(
            f"{where}: split {next(iter(weights)).name}, the first and so the stable version, has no weight and "
            "another has one: that would get everything; expected a weight for both, such as weight: 95 and weight: 5."
        )
    if not whole:
        weights[next(iter(weights))] = whole = 1.0
    rule = TrafficRule(
        model=item.name,
        split=tuple((target, weight / whole) for target, weight in weights.items()),
        version_header=_header(item.version_header, f"{where}: version_header"),
        sticky_header=_header(item.sticky_header, f"{where}: sticky_header"),
        limits=_limits(item.rollback, f"{where}: rollback"),
    )
    if item.HasField("shadow"):
        shadow = TrafficShadow(
            target=_target(item.shadow, f"{where}: shadow"),
            share=_number(item.shadow.share, f"{where}: shadow: share", most=1.0),
        )
        if not item.shadow.HasField("share"):
            raise ConfigurationError(
                f"{where}: shadow {shadow.target.name} has no share, and would compute nothing; expected the share of "
                "the requests that it computes, from 0 to 1, such as share: 0.1."
            )
        if item.shadow.HasField("tolerance"):
            tolerance = _number(item.shadow.tolerance, f"{where}: shadow: tolerance")
            shadow = replace(shadow, tolerance=tolerance)
        rule = replace(rule, shadow=shadow)
        if len({target.name for target in rule.targets}) < len(rule.targets):
            raise ConfigurationError(
                f"{where}: {shadow.target.name} is a version in the split and a label in the shadow, or the other way "
                "round; expected one of both, for metrics and headers to name it."
            )
        if shadow.target == rule.stable:
            raise ConfigurationError(
                f"{where}: the shadow is the stable version, {shadow.target.name}; expected another one to compare."
            )
    if rule.limits.max_disagreement is not None and rule.shadow is None:
        raise ConfigurationError(
            f"{where}: rollback: max_disagreement needs a shadow, whose answers are compared; expected shadow {{...}}."
        )
    return rule


def _target(item: traffic_pb2.SplitTarget | traffic_pb2.ShadowTarget, where: str) -> TrafficTarget:
    choice = item.WhichOneof("version_choice")
    if choice is None or (choice == "label" and not item.label) or (choice == "version" and item.version <= 0):
        raise ConfigurationError(f'{where} has no target; expected version: N, above 0, or label: "NAME".')
    return TrafficTarget(version=item.version) if choice == "version" else TrafficTarget(label=item.label)


def _limits(item: traffic_pb2.RollbackLimits, where: str) -> RollbackLimits:
    # What is not there is no limit; 0 is one.
    given = {field.name: value for field, value in item.ListFields()}

    def limit(name: str, *, most: float | None = None) -> float | None:
        return _number(given[name], f"{where}: {name}", most=most) if name in given else None

    usual = RollbackLimits()
    samples, window_s = limit("min_samples"), limit("window_seconds")
    for name in ("min_samples", "window_seconds"):
        if given.get(name) == 0:
            raise ConfigurationError(f"{where}: {name} is 0; expected a number above 0.")
    return RollbackLimits(
        max_error_rate=limit("max_error_rate", most=1.0),
        max_latency_ratio=limit("max_latency_ratio"),
        max_p99_ms=limit("max_p99_ms"),
        max_disagreement=limit("max_disagreement", most=1.0),
        min_samples=usual.min_samples if samples is None else int(samples),
        window_s=usual.window_s if window_s is None else window_s,
    )


def _number(value: float, where: str, *, most: float | None = None) -> float:
    if not math.isfinite(value) or value < 0 or (most is not None and value > most):
        wanted = "0 or more" if most is None else f"a number from 0 to {most:g}"
        raise ConfigurationError(f"{where} is {value:g}; expected {wanted}.")
    return value


def _header(text: str, where: str) -> str:
    if text and not _HEADER.fullmatch(text.lower()):
        raise ConfigurationError(f"{where} is {text!r}; expected a header's name, such as x-user-id.")
    return text.lower()
