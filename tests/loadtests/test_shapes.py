"""Shapes of load: when requests are due."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelyard.errors import ConfigurationError
from modelyard.loadtests.options import Shape, constant, read_plan
from modelyard.loadtests.options._shapes import PHASES, parse_shape

PHASE: dict[str, dict[str, Any]] = {
    "constant": {"rate": 50, "seconds": 4},
    "ramp": {"from": 0, "to": 100, "seconds": 10},
    "step": {"rates": [10, 20, 40], "seconds_each": 5},
    "spike": {"base": 10, "peak": 100, "before_seconds": 2, "spike_seconds": 1, "after_seconds": 2},
    "soak": {"rate": 3, "hours": 0.5},
    "day": {"low": 2, "high": 20, "seconds": 96},
}
REQUESTS = {"constant": 200, "ramp": 500, "step": 350, "spike": 140, "soak": 5400, "day": 1056}


def shape_of(kind: str, **changes: Any) -> Shape:
    return parse_shape([{"kind": kind, **PHASE[kind], **changes}], "plan")


def times(shape: Shape, *, poisson: bool = False, seed: int = 0) -> np.ndarray:
    chunks = list(shape.arrivals(poisson=poisson, seed=seed))
    return np.concatenate(chunks) if chunks else np.zeros(0)


def test_every_kind_is_tried() -> None:
    assert set(PHASE) == set(PHASES) == set(REQUESTS)


@pytest.mark.parametrize("kind", PHASE)
def test_as_many_requests_are_due_as_the_rates_add_up_to(kind: str) -> None:
    due = times(shape_of(kind))
    assert shape_of(kind).requests == pytest.approx(REQUESTS[kind])
    assert abs(len(due) - REQUESTS[kind]) <= 1
    assert np.all(np.diff(due) > 0)
    assert due[-1] <= shape_of(kind).seconds


def test_a_ramp_is_dense_at_its_high_end() -> None:
    due = times(shape_of("ramp"))
    # The integral of 10 t is 5 t^2: the n-th request is due at sqrt(n / 5).
    assert due == pytest.approx(np.sqrt(np.arange(500) / 5))


def test_a_spike_is_where_it_should_be() -> None:
    counts, _ = np.histogram(times(shape_of("spike")), bins=[0, 2, 3, 5])
    assert counts == pytest.approx([20, 100, 20], abs=1)


def test_a_day_is_low_at_night_and_high_at_noon() -> None:
    shape = shape_of("day")
    assert (shape.rate(0), shape.rate(48)) == pytest.approx((2, 20))
    assert shape.rate(-1) == shape.rate(96) == 0


def test_poisson_arrivals_are_independent() -> None:
    gaps = np.diff(times(constant(1000, 100), poisson=True, seed=5))
    assert len(gaps) == pytest.approx(100_000, rel=0.02)
    # Of an exponential distribution the standard deviation is the mean, and neighbours know nothing of each other.
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.02)
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.02


def test_a_seed_repeats_a_run() -> None:
    shape = constant(100, 10)
    assert np.array_equal(times(shape, poisson=True, seed=3), times(shape, poisson=True, seed=3))
    assert not np.array_equal(times(shape, poisson=True, seed=3)[:50], times(shape, poisson=True, seed=4)[:50])


def test_lengths_may_be_written_as_durations() -> None:
    assert shape_of("ramp", seconds="1m30s") == shape_of("ramp", seconds=90)
    assert shape_of("spike", spike_seconds="2s") == shape_of("spike", spike_seconds=2)
    assert shape_of("soak", hours="90m") == shape_of("soak", hours=1.5)


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([{"kind": "wave"}], "kind is 'wave'; expected one of constant, ramp"),
        ([{}], "kind is None"),
        (["ramp"], "kind is None"),
        ([{"kind": "constant", "rate": 1}], "a constant has the fields rate, seconds; received rate"),
        ([{"kind": "constant", "rate": 1, "seconds": 1, "sekonds": 2}], "received rate, seconds, sekonds"),
        ([{"kind": "constant", "rate": -1, "seconds": 1}], "rate is -1; expected a number, 0 or more"),
        ([{"kind": "constant", "rate": True, "seconds": 1}], "rate is True"),
        ([{"kind": "constant", "rate": 1, "seconds": 0}], "seconds is 0"),
        ([{"kind": "constant", "rate": 1, "seconds": "soon"}], "seconds is 'soon'; expected .* such as '1m30s'"),
        ([{"kind": "constant", "rate": "1s", "seconds": 1}], "rate is '1s'; expected a number, 0 or more"),
        ([{"kind": "step", "rates": [], "seconds_each": 1}], r"rates is \[\]"),
        ([{"kind": "constant", "rate": 0, "seconds": 1}], "no request at all"),
        ([], "no request at all"),
    ],
)
def test_shapes_that_make_no_sense(phases: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_shape(phases, "plan")


TOML = """
[load]
arrivals = "constant"
kinds = ["grpc image"]
[[load.shape]]
kind = "ramp"
from = 1
to = 9
seconds = 3
[limits]
max_p99_ms = 20
"""
YAML = """
load:
  arrivals: constant
  kinds: [grpc image]
  shape:
    - {kind: ramp, from: 1, to: 9, seconds: 3}
limits: {max_p99_ms: 20}
"""


def test_toml_and_yaml_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(TOML)
    (tmp_path / "plan.yaml").write_text(YAML)
    assert read_plan(tmp_path / "plan.toml") == read_plan(tmp_path / "plan.yaml")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("plan.toml", "[load", "is not TOML"),
        ("plan.yaml", "load: [", "is not YAML"),
        ("plan.yml", "- 1", "holds list; expected tables"),
        ("plan.toml", "[target]\nhost = 1", "'target' is not known"),
        ("plan.toml", "load = 3", "'load' is not known"),
        ("plan.toml", "[load]\nrates = 3", "load has rates; expected only"),
        ("plan.toml", "[load]\narrivals = 'uniform'", "arrivals is 'uniform'"),
        ("plan.toml", "[load]\nkinds = 'grpc image'", "expected a list"),
        ("plan.toml", "[load]\nseed = 'x'", "seed is 'x'"),
    ],
)
def test_plans_that_make_no_sense(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_plan(tmp_path / name)


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Cannot read the plan"):
        read_plan(tmp_path / "plan.toml")
