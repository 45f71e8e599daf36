"""Options as they are written on both command lines."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from modelyard.errors import ConfigurationError
from modelyard.loadtests import Limits, LoadTestOptions
from modelyard.loadtests.options import add_arguments, options_from


def parse(*argv: str) -> LoadTestOptions:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return options_from(parser.parse_args(argv))


def test_defaults_are_the_dataclass() -> None:
    assert parse() == LoadTestOptions()


@pytest.mark.parametrize(
    ("argv", "grpc_url", "rest_url"),
    [
        (["--host-grpc", "a:1"], "grpc://a:1", ""),
        (["--host-rest", "a:1"], "", "http://a:1"),
        (["--host-grpc", "grpcs://a", "--host-rest", "https://b/c"], "grpcs://a", "https://b/c"),
        (["--host-grpc", "", "--host-rest", "b"], "", "http://b"),
    ],
)
def test_hosts(argv: list[str], grpc_url: str, rest_url: str) -> None:
    options = parse(*argv)
    assert (options.grpc_url, options.rest_url) == (grpc_url, rest_url)


def test_limits() -> None:
    argv = [
        "--max-error-rate",
        "0.1",
        "--max-p95-ms",
        "5",
        "--max-p99-ms",
        "6.5",
        "--min-agreement",
        "0",
        "--min-requests",
        "7",
    ]
    assert parse(*argv).limits == Limits(
        max_error_rate=0.1, max_p95_ms=5, max_p99_ms=6.5, min_agreement=0, min_requests=7
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("2.5", 2.5), ("30s", 30), ("1m30s", 90), ("1m30", 90), ("2h", 7200), ("1h0.5m", 3630), ("0.2s", 0.2)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse("--timeout-s", text).timeout_s == seconds


def test_no_host_at_all() -> None:
    with pytest.raises(ConfigurationError, match="Both --host-grpc and --host-rest are empty"):
        parse("--host-grpc", "", "--host-rest", "")


@pytest.mark.parametrize(
    "argv",
    [
        ["--rows", "0"],
        ["--rows", "1.5"],
        ["--rows", "100000000000000000"],
        ["--rate", "0"],
        ["--rate", "nan"],
        ["--max-error-rate", "1.1"],
        ["--min-accuracy", "-0.1"],
        ["--min-agreement", "2"],
        ["--max-p95-ms", "-1"],
        ["--timeout-s", "soon"],
        ["--timeout-s", "0s"],
        ["--timeout-s", "-1"],
        ["--timeout-s", "1s30m"],
    ],
)
def test_values_that_make_no_sense(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*argv)
    assert caught.value.code == 2
    assert f"received '{argv[1]}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.yaml", "load: {kinds: [1]}", "kinds is [1]; expected a list of kinds, such as ['grpc', 'rest']"),
        ("p.toml", "[load]\nkinds = []", "kinds is []; expected a list of kinds"),
        ("p.toml", "[load]\nseed = -5", "seed is -5; expected a whole number, 0 or more"),
        ("p.toml", "[load]\nseed = true", "seed is True; expected a whole number"),
        ("p.toml", "[load]\nseed = " + "9" * 5000, "p.toml is not TOML: "),
        ("p.yaml", "load: {seed: " + "9" * 5000 + "}", "p.yaml is not YAML: "),
        ("p.toml", "load = " + "[" * 100_000, "p.toml is not TOML: "),
        ("p.yaml", "load: " + "[" * 100_000, "p.yaml is not YAML: "),
        ("p.yaml", "load: {1: 2, a: 3}", "load has 1, a; expected only arrivals, kinds, shape, seed"),
        ("p.yaml", "1: {}", "1 is not known; expected the tables load, limits"),
        ("p.yaml", "limits: {1: 2}", "unknown limit 1; expected one of max_error_rate"),
        ("p.toml", "[limits]\nmin_requests = 1.5", "min_requests is 1.5; expected a whole number, 1 or more"),
        ("p.toml", "[limits]\nmin_requests = 0", "min_requests is 0; expected a whole number, 1 or more"),
        ("p.toml", "[limits]\nmax_p99_ms = " + "9" * 400, "expected a number, 0 or more"),
        ("p.toml", "[limits]\nmax_p99_ms = nan", "max_p99_ms is nan; expected a number, 0 or more"),
        (
            "p.toml",
            "[[load.shape]]\nkind = 'constant'\nseconds = 1\nrate = " + "9" * 400,
            "expected a number, 0 or more",
        ),
        ("p.yaml", "load: {shape: [{kind: constant, 1: 2}]}", "a constant has the fields rate, seconds; received 1"),
    ],
)
def test_plans_that_make_no_sense(tmp_path: Path, name: str, text: str, message: str) -> None:
    plan = tmp_path / name
    plan.write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape(message)) as caught:
        parse("--plan", str(plan))
    assert str(plan) in caught.value.message
