"""Options as they are written on both command lines."""

from __future__ import annotations

import argparse

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
