"""Whole runs against a real server: they pass, and they fail for the right reason."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from modelyard.artifact import WARMUP_FILE
from modelyard.wire import array_to_tensor, serving_pb2
from tests.support.models import publish_pairs
from tests.support.records import write_records
from tests.support.server import RunningServer, free_port, serve

ROOT = Path(__file__).resolve().parents[2]
LOCUSTFILE = ROOT / "loadtests" / "locustfile.py"
KINDS = ("grpc image", "grpc image_bytes", "rest image", "rest image_bytes")


def load(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = "import sys; from modelyard.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "loadtest", "-u", "4", "-t", "2s", "--min-agreement", "0.4", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def hosts(server: RunningServer) -> tuple[str, ...]:
    return "--host-grpc", server.grpc_address, "--host-rest", server.rest_url


def requests_of(text: str) -> dict[str, int]:
    pattern = r"^load test: (\w+ \w+): (\d+) requests, 0 failed"
    return {kind: int(count) for kind, count in re.findall(pattern, text, re.MULTILINE)}


def test_a_healthy_server_passes(server: RunningServer) -> None:
    done = load(*hosts(server), "--max-p95-ms", "2000", "--rows", "4")
    assert done.returncode == 0, done.stderr
    counts = requests_of(done.stdout)
    assert set(counts) == set(KINDS)
    assert min(counts.values()) > 0
    assert "LIMIT BROKEN" not in done.stderr
    assert "load test: images from" in done.stdout


def test_an_impossible_limit_fails_the_run(server: RunningServer) -> None:
    done = load(*hosts(server), "--max-p95-ms", "0.001")
    assert done.returncode == 1
    for kind in KINDS:
        assert re.search(rf"LIMIT BROKEN: {kind}: p95 is \S+ ms; the limit is 0\.001 ms", done.stderr)


def test_wrong_classes_fail_the_run(wrong_server: RunningServer) -> None:
    done = load(*hosts(wrong_server))
    assert done.returncode == 1
    assert re.search(r"LIMIT BROKEN: rest image: \d+ of \d+ answers agree with the expected ones", done.stderr)
    assert " requests failed" not in done.stderr


def test_an_unknown_model_fails_the_run(server: RunningServer) -> None:
    done = load(*hosts(server), "--model", "shoes")
    assert done.returncode == 2
    assert "Name the model with --model" in done.stderr
    # Who says what to send has it sent.
    done = load(*hosts(server), "--model", "shoes", "--kind", "grpc image")
    assert done.returncode == 2
    assert "grpc image: 0 requests were answered" in done.stderr
    assert "no request 'grpc image' was answered rightly" in done.stderr
    assert "(100.00%); the limit is 0.00%" in done.stderr
    assert "ModelNotFoundError" in done.stderr + done.stdout


def test_no_server_fails_the_run() -> None:
    done = load("--host-grpc", f"127.0.0.1:{free_port()}", "--timeout-s", "1s")
    assert done.returncode == 2
    assert "cannot be reached" in done.stderr
    done = load("--host-grpc", f"127.0.0.1:{free_port()}", "--timeout-s", "1", "--kind", "grpc image")
    assert done.returncode == 2
    assert "grpc image: 0 requests were answered" in done.stderr
    assert "no request 'grpc image' was answered rightly" in done.stderr
    assert "rest" not in requests_of(done.stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--host-grpc", "tcp://host:1"), 2, "Cannot connect to 'tcp://host:1'"),
        (("--host-grpc", "", "--host-rest", ""), 2, "Both --host-grpc and --host-rest are empty"),
        (("--rows", "0"), 2, "received '0'; expected a whole number"),
        (("-t", "1d"), 2, "received '1d'; expected a duration"),
        (("--data", "rows.xml", "--host-grpc", "127.0.0.1:9"), 2, "cannot be reached"),
        (("--no-such-flag",), 2, "modelyard loadtest: error: unrecognized arguments: --no-such-flag"),
    ],
)
def test_runs_that_cannot_start(arguments: tuple[str, ...], code: int, message: str) -> None:
    done = load(*arguments)
    assert done.returncode == code
    assert message in done.stderr


def test_users_of_the_open_inference_protocol(server: RunningServer) -> None:
    kinds = ("grpc-v2 image", "rest-v2 image_bytes")
    done = load(*hosts(server), *(part for kind in kinds for part in ("--kind", kind)))
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^load test: (\S+ \S+): (\d+) requests, 0 failed", done.stdout, re.MULTILINE)
    assert tuple(kind for kind, _ in found) == kinds
    assert min(int(count) for _, count in found) > 0


def test_users_of_any_model(tmp_path: Path) -> None:
    version = publish_pairs(tmp_path / "pairs")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"a": [1, 2, 3], "b": [0, 0, 1]}\n')
    log = serving_pb2.PredictionLog()
    log.predict_log.request.model_spec.name = "pairs"
    for name in "ab":
        log.predict_log.request.inputs[name].CopyFrom(array_to_tensor(np.ones((2, 3), np.float32)))
    write_records(version.path / WARMUP_FILE, [log.SerializeToString()])
    with serve(tmp_path / "pairs", model="pairs", log_dir=tmp_path) as server:
        for arguments, source in (
            (("--data", str(rows), "--kind", "grpc", "--kind", "rest-v2"), f"{rows}: 1 rows for signature"),
            # The repository has one model, which need not be named.
            (("--repository", str(tmp_path)), "recorded requests of"),
            (("--replay", str(version.path / WARMUP_FILE)), "replay of"),
        ):
            named = ("--model", "pairs") if "--data" in arguments else ()
            # Locust alone would not take a fraction of a second.
            done = load(*hosts(server), *arguments, *named, "-t", "1.5s")
            assert done.returncode == 0, done.stderr
            assert f"load test: {source}" in done.stdout
            found = re.findall(r"^load test: \S+ \w+: (\d+) requests, 0 failed.* agreement -$", done.stdout, re.M)
            assert len(found) == (1 if "--replay" in arguments else 2)
            assert min(map(int, found)) > 0


def test_a_plan_shapes_the_users(server: RunningServer, tmp_path: Path) -> None:
    plan, junit = tmp_path / "plan.toml", tmp_path / "junit.xml"
    plan.write_text(
        '[load]\n[[load.shape]]\nkind = "step"\nrates = [20, 60]\nseconds_each = 1.5\n[limits]\nmin_requests = 100000\n'
    )
    done = load("--host-grpc", server.grpc_address, "--plan", str(plan), "--junit", str(junit), "-t", "60s")
    # Three seconds, not sixty: the shape ends the run; and its limits are the plan's.
    assert done.returncode == 1
    assert re.search(r"BROKEN +grpc image +min_requests +100000", done.stdout)
    assert 'failures="2"' in junit.read_text()
    assert re.search(r"Shape test updating to 1 users at|Shape test updating to 3 users at", done.stderr + done.stdout)


def test_the_locustfile_spreads_over_processes(server: RunningServer) -> None:
    """Locust's own master and two workers; the counts of right classes travel, too."""
    port = str(free_port())
    common = ["-m", "locust", "-f", str(LOCUSTFILE), *hosts(server), "--min-agreement", "0.3"]
    master = subprocess.Popen(
        [
            sys.executable, *common, "--master", "--master-bind-port", port, "--headless", "--expect-workers", "2",
            "--users", "4", "--spawn-rate", "4", "--run-time", "3s", "--only-summary",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    processes = [master]
    try:
        for _ in range(2):
            processes.append(
                subprocess.Popen(
                    [sys.executable, *common, "--worker", "--master-port", port],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
        out, err = master.communicate(timeout=90)
        assert [worker.wait(timeout=30) for worker in processes[1:]] == [0, 0]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
    assert master.returncode == 0, err
    assert set(requests_of(out)) == set(KINDS)
    assert re.search(r"grpc image: .* agreement \d+\.\d+%", out)
    assert len(set(re.findall(r"(\S+) \(index [01]\) reported as ready", err))) == 2


def test_importing_the_room_leaves_the_process_alone() -> None:
    script = (
        "import socket, sys; before = socket.socket; import modelyard.loadtests, modelyard.loadtests.cli; "
        "print(socket.socket is before, 'gevent' in sys.modules, 'locust' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "False", "False"]


SLOW_START = """
import gevent
from locust import events
from locust.runners import WorkerRunner

@events.init.add_listener
def begins_late(environment, **_):
    if isinstance(environment.runner, WorkerRunner):
        gevent.sleep(2)
"""


def test_users_wait_for_a_worker_that_begins_late(server: RunningServer, tmp_path: Path) -> None:
    """A worker is connected, and told to start users, before it has made its requests."""
    locustfile = tmp_path / "late.py"
    locustfile.write_text(SLOW_START + LOCUSTFILE.read_text())
    port = str(free_port())
    command = [
        sys.executable, "-m", "locust", "-f", str(locustfile), *hosts(server), "--headless", "--processes", "2",
        "--master-bind-port", port, "--master-port", port, "--min-agreement", "0.3",
        "--users", "4", "--spawn-rate", "4", "--run-time", "5s", "--only-summary",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    assert min(requests_of(done.stdout).values()) > 0


def test_users_without_install_are_told_so() -> None:
    code = """
from locust.env import Environment
from modelyard.errors import LoadTestError
from modelyard.loadtests.users import GrpcUser

try:
    GrpcUser(Environment())
except LoadTestError as exc:
    print(exc.message)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "must call modelyard.loadtests.users.install(locust.events)" in done.stdout
