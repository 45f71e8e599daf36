"""The commands as a user starts them: exit codes, files, and short versions of the scenarios."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from modelyard.cli import main
from modelyard.errors import ConfigurationError
from tests.support.access import entry, key_of
from tests.support.classifier import publish_classifier
from tests.support.models import publish_pairs
from tests.support.server import RunningServer, free_port

SCRIPT = "import sys; from modelyard.cli import main; sys.exit(main(sys.argv[1:]))"
#: Latency says little on a machine that runs other tests at the same time.
LENIENT = ("--max-p99-ms", "20000", "--min-agreement", "0.3", "--no-pin")


def loadtest(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, "loadtest", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, fashion) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    publish_classifier(folder / "fashion", fashion)
    return folder


def test_an_open_loop_with_a_plan_leaves_a_report(server: RunningServer, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[load]\nkinds = ["grpc image", "rest-v2 image"]\n'
        '[[load.shape]]\nkind = "spike"\nbase = 20\npeak = 80\nbefore_seconds = 1\nspike_seconds = 0.5\n'
        "after_seconds = 0.5\n[limits]\nmin_agreement = 0.3\nmax_p99_ms = 20000\nmin_throughput = 10\n"
    )
    out = tmp_path / "out"
    done = loadtest(
        "run", "--host-grpc", server.grpc_address, "--host-rest", server.rest_url, "--plan", plan, "--report", out
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "report.json").read_text())
    assert report["passed"] is True
    total = report["measured"][-1]
    assert total["requests"] == pytest.approx(70, abs=30)
    assert sum(round(window["due_per_s"] * 0.25) for window in report["timeline"]) == total["requests"]
    assert report["machine"]["cores"].isdecimal()
    assert report["versions"]["Python"]
    with (out / "timeline.csv").open() as file:
        assert [row["begin_s"] for row in csv.DictReader(file)] == [str(index * 0.25) for index in range(8)]
    suite = ElementTree.parse(out / "junit.xml").getroot()
    assert (suite.get("failures"), int(suite.get("tests", "0"))) == ("0", len(report["checks"]))
    page = (out / "report.html").read_text()
    # One file that needs no other, and runs no script.
    assert not re.search(r"<script|<link|src=|href=|url\(|@import", page)
    assert page.count("<svg") == 3
    assert "all limits kept" in page


@pytest.mark.parametrize(("flags", "seed"), [((), 3), (("--seed", "0"), 0), (("--seed", "7"), 7)])
def test_a_seed_that_is_given_goes_before_the_plan_s(
    server: RunningServer, tmp_path: Path, flags: tuple[str, ...], seed: int
) -> None:
    (tmp_path / "plan.toml").write_text("[load]\nseed = 3\n")
    command = ("run", "-t", "1s", "--host-grpc", server.grpc_address, "--data", "random")
    done = loadtest(*command, "--plan", tmp_path / "plan.toml", "--report", tmp_path / "out", *flags)
    assert f", seed {seed}\n" in done.stdout, done.stderr
    assert json.loads((tmp_path / "out" / "report.json").read_text())["plan"]["seed"] == str(seed)


def test_a_broken_limit_is_told_everywhere(server: RunningServer, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    done = loadtest(
        "run", "--host-grpc", server.grpc_address, "-t", "1", "--max-p50-ms", "0.001", "--min-agreement", "0.3",
        "--junit", junit,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(r"BROKEN +grpc image +max_p50_ms +0\.001", done.stdout)
    assert "LIMIT BROKEN: grpc image: p50 is" in done.stderr
    failures = ElementTree.parse(junit).getroot().findall("testcase/failure")
    assert len(failures) == 2
    assert "the limit is 0.001 ms" in (failures[0].get("message") or "")


def test_capacity_is_found_and_drawn(server: RunningServer, tmp_path: Path) -> None:
    done = loadtest(
        "capacity", "--p99-ms", "5000", "--host-grpc", server.grpc_address, "--kind", "grpc image", "--probe-s", "0.5",
        "--resolution", "0.4", "--min-agreement", "0.3", "--curve", "--min-capacity", "1", "--report", tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    match = re.search(
        r"^\ncapacity: (\S+) requests per second, with p99 (\S+) ms in the median run; (\d) of 3 runs",
        done.stdout,
        re.M,
    )
    assert match is not None
    assert int(match[3]) >= 2
    # The verdict, the table, the limits and the file have the same numbers.
    assert re.search(rf"^all +\d+ .* {re.escape(match[1])} .* {re.escape(match[2])} ", done.stdout, re.M)
    report = json.loads((tmp_path / "report.json").read_text())
    (row,) = report["measured"]
    checks = {check["name"]: check for check in report["checks"]}
    assert f"{row['answered_per_s']:.1f}" == f"{checks['min_capacity']['value']:.1f}" == match[1]
    assert f"{row['p99_ms']:.2f}" == f"{checks['max_p99_ms']['value']:.2f}" == match[2]
    assert all(check["kept"] for check in checks.values())
    assert report["verdict"] in (tmp_path / "report.html").read_text()
    capacity = float(match[1])
    assert any(point["kept"] and point["answered_per_s"] == row["answered_per_s"] for point in report["curve"])
    assert min(point["rate"] for point in report["curve"]) == pytest.approx(capacity / 10, rel=0.3)
    assert "Latency by throughput" in (tmp_path / "report.html").read_text()
    picture = ElementTree.parse(tmp_path / "curve.svg").getroot()
    assert {"p50", "p95", "p99"} <= {text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")}
    rates = len({point["rate"] for point in report["curve"]})
    assert sum(1 for _ in picture.iter("{http://www.w3.org/2000/svg}circle")) == 3 * rates


def test_a_kind_without_a_request_is_no_success(server: RunningServer) -> None:
    done = loadtest(
        "run", "--host-grpc", server.grpc_address, "--kind", "grpc image", "--kind", "grpc image_bytes", "-t", "1",
        "--rate", "1", "--arrivals", "constant", *LENIENT[:4],
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search("grpc image(_bytes)?: 0 requests were answered; expected at least 1", done.stderr), done.stderr


def test_a_server_with_an_access_file_is_started(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "access.toml").write_text(entry("loader", "predict", "metadata", "metrics"))
    monkeypatch.setenv("MODELYARD_TOKEN", key_of("loader"))
    flag = f"--server-flag=--access_file={tmp_path / 'access.toml'}"
    done = loadtest("run", "--serve", repository, flag, "-t", "1", *LENIENT)
    assert done.returncode == 0, done.stderr


def test_capacity_says_where_there_is_none(server: RunningServer) -> None:
    done = loadtest("capacity", "--p99-ms", "0.001", "--host-grpc", server.grpc_address, "--probe-s", "0.3")
    assert done.returncode == 1
    assert "no capacity: even at" in done.stdout
    assert "LIMIT BROKEN: all: " in done.stderr


def test_capacity_is_about_every_limit(server: RunningServer) -> None:
    done = loadtest(
        "capacity", "--p99-ms", "5000", "--max-p50-ms", "0.001", "--host-grpc", server.grpc_address, "--probe-s", "0.3",
        "--min-agreement", "0",
    )  # fmt: skip
    assert done.returncode == 1
    assert "limits broken" in done.stdout
    assert "within limits" not in done.stdout


def test_a_scenario_keeps_the_limits_of_a_plan(server: RunningServer, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("[limits]\nmax_p50_ms = 0.001\nmax_p99_ms = 0.001\nmin_agreement = 0\n")
    scenario = ("scenario", "smoke", "-t", "1", "--calibrate-s", "0.5", "--host-grpc", server.grpc_address)
    done = loadtest(*scenario, "--host-rest", server.rest_url, "--plan", plan, "--max-p99-ms", "20000")
    assert done.returncode == 1
    assert "LIMIT BROKEN: grpc image: p50 is " in done.stderr
    assert "p99" not in done.stderr, "the flag wins"
    plan.write_text('[[load.shape]]\nkind = "constant"\nrate = 1\nseconds = 1\n')
    done = loadtest(*scenario, "--plan", plan)
    assert (done.returncode, "no use for a plan's shape: each scenario has its own" in done.stderr) == (2, True)


def test_two_builds_are_compared(repository: Path, tmp_path: Path) -> None:
    done = loadtest(
        "compare", sys.executable, sys.executable, "--serve", repository, "--rounds", "2", "--round-s", "0.5",
        "--open-rate", "40", "--min-agreement", "0.3", "--max-latency-ratio", "1e-9", "--report", tmp_path,
    )  # fmt: skip
    # The same build twice is certainly more than a billionth as slow.
    assert done.returncode == 1
    assert re.search(r"LIMIT BROKEN: B / A: B / A is \S+ \(\S+ to \S+\); the limit is 1e-09", done.stderr)
    rounds = re.findall(r"^round (\d) ([AB]):", done.stdout, re.MULTILINE)
    assert rounds == [("1", "A"), ("1", "B"), ("2", "B"), ("2", "A")]
    verdict = r"(B is better|B is worse|no difference shown)$"
    for metric in ("throughput /s", "p50 ms", "p95 ms", "p99 ms"):
        assert re.search(rf"^{metric} +\S+ +\S+ +\S+ +\S+ to \S+ +{verdict}", done.stdout, re.MULTILINE)
    assert done.stdout.index("pairs of rounds; open loop at 40 requests") < done.stdout.index("95 % interval")
    report = json.loads((tmp_path / "report.json").read_text())
    assert [row["metric"] for row in report["metrics"]] == ["throughput /s", "p50 ms", "p95 ms", "p99 ms"]
    page = (tmp_path / "report.html").read_text()
    assert "limits broken" in page
    assert "95 % interval" in page
    # Both rounds, not the last alone: 2 times half a second at 40 per second.
    assert all(20 <= row["requests"] <= 60 for row in report["measured"])


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load (nghttp2-client) is not installed")
@pytest.mark.parametrize("kind", ["grpc image", "rest image", "rest-v2 image_bytes"])
def test_h2load(server: RunningServer, tmp_path: Path, kind: str) -> None:
    done = loadtest(
        "h2load", "--host-grpc", server.grpc_address, "--host-rest", server.rest_url, "--kind", kind, "-t", "1",
        "--rate", "80", "--clients", "2", "--warm-up-s", "1", "--min-agreement", "0", "--report", tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((tmp_path / "report.json").read_text())["measured"]
    assert row["failures"] == 0
    # 80, where nobody else uses the machine.
    assert 20 <= row["requests"] <= 130
    assert row["p99_ms"] > 0


def test_h2load_would_show_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    from modelyard.loadtests.generate import H2loadOptions, endpoint, run_h2load
    from modelyard.loadtests.traffic import Request

    monkeypatch.setenv("MODELYARD_TOKEN", "secret")
    where = endpoint("http://localhost:1")
    assert "secret" not in repr(where)
    request = Request(kind="rest x", api="rest", path="/", body=b"")
    with pytest.raises(ConfigurationError, match="MODELYARD_TOKEN is set; use modelyard loadtest run"):
        run_h2load(where, request, H2loadOptions(seconds=1), answer_bytes=1, matches=1)


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load (nghttp2-client) is not installed")
def test_h2load_notices_refusals_that_have_status_200(server: RunningServer) -> None:
    """gRPC's errors are in the trailers, which h2load does not read: too few bytes give them away."""
    from modelyard.loadtests import LoadTestOptions
    from modelyard.loadtests.generate import H2loadOptions, endpoint, run_h2load
    from modelyard.loadtests.traffic import ImageTraffic

    url = f"grpc://{server.grpc_address}"
    options = LoadTestOptions(grpc_url=url, rest_url="", model="shoes")
    (request,) = ImageTraffic().requests(options, ["grpc image"], distinct=1)
    looking = H2loadOptions(rate=50, seconds=1, clients=2, warm_up_s=1)
    log = run_h2load(endpoint(url), request, looking, answer_bytes=200, matches=1)
    assert log.measured().failures == log.measured().requests > 0


#: Images are decoded before the graph: without that in the estimate nobody is refused in time, and requests fail. With
#: 64 images in each the generator has little to do, and the latency is the server's, on a machine with other work too.
#: Three times what the server can do for 4 s would be a queue of 8 s, were nobody refused: half of that is the limit.
OVERLOAD = ("-t", "4", "--rows", "64", "--calibrate-s", "1", "--server-flag=--max_queue_delay_ms=200",
            "--max-error-rate", "0", "--min-goodput", "0.5", "--max-p99-ms", "4000")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "texts"),
    [
        ("smoke", ("-t", "1"), ("grpc image", "rest image_bytes")),
        ("overload", OVERLOAD, ("min_goodput", "the server refused")),
        ("rollout", ("-t", "5", "--every-s", "2", "--max-step-ms", "20000"), ("newest_version",)),
        ("rolling-restart", ("-t", "15", "--every-s", "0.5"), ("restarted",)),
        ("slow-clients", ("-t", "4"), ("slow clients",)),
        ("mixed-models", ("-t", "2"), ("grpc-v2 image of fashion-2", "rest image of fashion")),
        ("big-payloads", ("-t", "2"), ("rest image",)),
    ],
)  # fmt: skip
def test_scenarios(repository: Path, name: str, arguments: tuple[str, ...], texts: tuple[str, ...]) -> None:
    if name == "big-payloads":
        arguments = (*arguments, "--max-error-rate", "0")
    done = loadtest("scenario", name, "--serve", repository, "--calibrate-s", "0.5", *LENIENT, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    for text in texts:
        assert text in done.stdout
    versions = sorted(path.name for path in (repository / "fashion").iterdir())
    assert versions == ["1"], "a scenario changed the user's repository"


@pytest.mark.parametrize(
    "command", ["capacity --p99-ms 5", "compare grpc://a:1 grpc://b:1", "scenario smoke", "h2load"]
)
def test_arrivals_of_a_plan_are_for_run(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[load]\narrivals = "constant"\n')
    assert main(["loadtest", *command.split(), "--plan", str(plan)]) == 2
    assert f"loadtest {command.split()[0]} has no use for a plan's arrivals" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("scenario", "rollout", "--host-grpc", "localhost:1"), "give --serve REPOSITORY"),
        (("scenario", "storm"), "invalid choice: 'storm'"),
        (("run", "--serve", "/nowhere"), "/nowhere does not exist; expected a model repository"),
        (("run", "--serve", "/no\x1b[2Jwhere"), "/no\\x1b[2Jwhere does not exist"),
        (("run", "-t", "soon"), "received 'soon'; expected a duration above 0 such as 30, 30s, 1m30s or 1h"),
        (("h2load", "-t", "1.5s"), "received '1.5s'; expected whole seconds"),
        (("run", "--data", "rows.parquet", "--host-grpc", f"127.0.0.1:{free_port()}"), "cannot be reached"),
        (("run", "--plan", "/nowhere.toml"), "Cannot read the plan"),
        (("capacity",), "give --p99-ms"),
        (("capacity", "--p99-ms", "5", "--resolution", "5"), "received '5'; expected a share above 0 and below 1"),
        (("compare", "a", "b"), "Cannot load 'a'"),
        (("compare", "grpc://a:1", "grpc://b:1", "--rounds", "1"), "expected 2 or more"),
        (("capacity", "--p99-ms", "5", "--min-throughput", "9"), "--min-capacity is that limit"),
        (("capacity", "--p99-ms", "5", "--min-requests", "9"), "no use for --min-requests"),
        (("compare", "grpc://a:1", "grpc://b:1", "--max-p95-ms", "5"), "by --max-latency-ratio"),
        (("compare", "grpc://a:1", "grpc://b:1", "--min-throughput", "5"), "and --min-throughput-ratio"),
        (("scenario", "smoke", "--replay", "requests.tfrecord"), "loadtest scenario has no use for --replay"),
        (("h2load", "--replay", "requests.tfrecord"), "it repeats one request"),
        (("h2load", "--kind", "grpc image", "--kind", "rest image"), "h2load"),
        (("run", "--host-grpc", f"127.0.0.1:{free_port()}"), "cannot be reached"),
        (
            ("run", "--host-grpc", f"127.0.0.1:{free_port()}", "--kind", "grpc image"),
            "no request 'grpc image' was answered rightly",
        ),
    ],
)
def test_commands_that_cannot_run(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        found = main(["loadtest", *arguments])
    except SystemExit as exc:
        found = int(exc.code or 0)
    assert (found, message in capsys.readouterr().err) == (2, True)


def test_a_report_without_jinja2_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["loadtest", "run", "--report", "out"]) == 2
    assert "--report needs the package 'jinja2'" in capsys.readouterr().err


# ---- a model that is no image classifier ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    publish_pairs(folder / "pairs")
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text('{"a": [1, 2, 3], "b": [0, 0, 1]}\n{"instances": [{"a": [4, 5, 6], "b": [0.5, 1, 2]}]}\n')
    return path


#: Each kind of command and of payload; the other scenarios send what smoke sends.
COMMANDS = [
    ("run", "-t", "1s", "--rate", "40"),
    ("run", "--run-time", "0.5s", "--data", "random", "--rows", "4", "--kind", "rest-v2"),
    ("capacity", "--p99-ms", "5000", "--probe-s", "0.3s", "--resolution", "0.4"),
    ("scenario", "smoke", "-t", "1s"),
    ("scenario", "overload", "-t", "2s", "--min-goodput", "0.01", "--max-error-rate", "1"),
    ("scenario", "rollout", "-t", "4s", "--every-s", "1.5s", "--max-step-ms", "20000"),
    ("scenario", "big-payloads", "-t", "2s"),
    ("scenario", "mixed-models", "-t", "2s"),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments[:2]))
def test_every_command_loads_any_model(pairs: Path, rows: Path, arguments: tuple[str, ...]) -> None:
    """The repository has one model, which need not be named."""
    more: list[str | Path] = ["--no-pin", *(() if "random" in arguments else ("--data", rows))]
    if arguments[0] == "scenario":
        more += ["--calibrate-s", "0.5s"]
    if "--p99-ms" not in arguments:
        more += ["--max-p99-ms", "20000"]
    done = loadtest(*arguments, "--serve", pairs, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    source = "random values for signature" if "random" in arguments else f"{rows}: 2 rows for signature"
    assert f"load test: {source} serving_default" in done.stdout
    assert re.search(r"^(all|\S+ serving_default.*) +\d+ +0 +0 .* -$", done.stdout, re.MULTILINE), done.stdout


def test_builds_of_any_model_are_compared(pairs: Path, rows: Path) -> None:
    done = loadtest(
        "compare", sys.executable, sys.executable, "--serve", pairs, "--rounds", "2", "--round-s", "0.3s",
        "--open-rate", "40", "--data", rows, "--no-pin",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("load test: ") == 1


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load (nghttp2-client) is not installed")
@pytest.mark.parametrize("kind", ["grpc", "rest-v2"])
def test_h2load_loads_any_model(pairs: Path, rows: Path, kind: str) -> None:
    done = loadtest("h2load", "--serve", pairs, "--data", rows, "-t", "1s", "--kind", kind, "--no-pin")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{kind} serving_default +\d+ +0 +0 .* -$", done.stdout, re.MULTILINE)


def test_a_repository_with_several_models_asks_for_a_name(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        shutil.copytree(pairs / "pairs", tmp_path / name)
    assert main(["loadtest", "run", "--serve", str(tmp_path)]) == 2
    assert (
        "holds no version of the model 'fashion'. It holds one, two: name one with --model." in capsys.readouterr().err
    )
