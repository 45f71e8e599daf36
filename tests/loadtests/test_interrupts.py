"""Ctrl-C and SIGTERM in the middle of a load test: it ends, and what was measured is reported."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.models import publish_pairs
from tests.support.server import RunningServer, free_port, serve
from tests.support.waiting import until, until_ended

SCRIPT = "import sys; from modelyard.cli import main; sys.exit(main(sys.argv[1:]))"

#: Requests by which the warm-up is over.
_MANY = 250


class Started:
    """A load test of a minute, in a process group of its own, as a shell starts it."""

    def __init__(self, server: RunningServer, folder: Path, *arguments: str) -> None:
        self.out = folder / "out"
        command = [
            sys.executable, "-c", SCRIPT, "loadtest", *arguments, "--host-grpc", server.grpc_address,
            "--kind", "grpc", "--model", "pairs", "--data", "random",
        ]  # fmt: skip
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, process_group=0)

    def text(self) -> str:
        return self.out.read_text()

    def wait(self) -> int:
        code = self.process.wait(30)
        # Nothing that it started is left.
        with pytest.raises(ProcessLookupError):
            os.killpg(self.process.pid, 0)
        return code


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("pairs")
    publish_pairs(folder / "pairs")
    config = folder / "monitoring.config"
    config.write_text("prometheus_config { enable: true }")
    with serve(
        folder / "pairs", model="pairs", log_dir=folder, flags=[f"--monitoring_config_file={config}"]
    ) as running:
        yield running


@pytest.fixture
def start(server: RunningServer, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Starts a load test and waits until the server has answered a good many of its requests."""
    with contextlib.ExitStack() as stack:

        def begin(*arguments: str) -> Started:
            before = answered(server)
            started = Started(server, tmp_path, *arguments)
            # After a failure: a process that is not waited for makes another test fail, too.
            stack.callback(started.process.wait)
            stack.callback(started.process.kill)
            until(lambda: answered(server) > before + _MANY or started.process.poll() is not None, what=started.text)
            assert started.process.poll() is None, started.text()
            return started

        yield begin


def answered(server: RunningServer) -> int:
    """Requests for the model, by the server's own metrics."""
    _, page = server.get("/monitoring/prometheus/metrics")
    lines = (line for line in page.splitlines() if line.startswith(":tensorflow:serving:request_count{"))
    return sum(int(float(line.rpartition(" ")[2])) for line in lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_locust_ends_and_prints_its_table(start: Callable[..., Started], tmp_path: Path, number: int) -> None:
    junit = tmp_path / "junit.xml"
    started = start("-u", "20", "-t", "60s", "--junit", str(junit))
    started.process.send_signal(number)
    assert started.wait() == 130, started.text()
    text = started.text()
    assert text.count("load test: grpc serving_default: ") == text.count("Response time percentiles") == 1, text
    assert "load test: LIMIT BROKEN: all: interrupted after" in text
    assert "Traceback" not in text
    names = [case.get("name") for case in ElementTree.parse(junit).getroot().findall("testcase[failure]")]
    assert names == ["whole_run"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_locust_that_follows_a_plan_ends(start: Callable[..., Started], tmp_path: Path, number: int) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[load]\n[[load.shape]]\nkind = "constant"\nrate = 80\nseconds = 60\n')
    started = start("--plan", str(plan))
    started.process.send_signal(number)
    assert started.wait() == 130, started.text()
    assert "interrupted after" in started.text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_locust_of_several_processes_ends(start: Callable[..., Started], number: int) -> None:
    """``--data`` is a path, which the master sends to its workers with all its options."""
    port = str(free_port())
    started = start("--processes", "2", "--master-bind-port", port, "--master-port", port, "-u", "4", "-t", "60s")
    started.process.send_signal(number)
    assert started.wait() == 130, started.text()
    assert "interrupted after" in started.text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_reports_what_it_measured(start: Callable[..., Started], tmp_path: Path, number: int) -> None:
    report, junit = tmp_path / "report", tmp_path / "junit.xml"
    started = start("run", "-t", "60s", "--rate", "200", "--report", str(report), "--junit", str(junit))
    started.process.send_signal(number)
    assert started.wait() == 130, started.text()
    text = started.text()
    assert re.search(r"^grpc serving_default +\d+ +0 +0 ", text, re.MULTILINE), text
    assert re.search(r"^BROKEN +all +whole_run +60 ", text, re.MULTILINE), text
    assert "Traceback" not in text
    for file in (junit, report / "junit.xml"):
        (failed,) = ElementTree.parse(file).getroot().findall("testcase[failure]")
        assert failed.get("name") == "whole_run"
    found = json.loads((report / "report.json").read_text())
    assert found["passed"] is False
    (row,) = found["measured"]
    assert (row["requests"] > 0, row["failures"], row["seconds"] < 59) == (True, 0, True)
    assert sum(round(each["due_per_s"] * 0.25) for each in found["timeline"][:-1]) <= row["requests"]
    assert ">interrupted</span>" in (report / "report.html").read_text()


def test_a_scenario_reports_what_it_measured_and_its_server_ends(server: RunningServer, tmp_path: Path) -> None:
    started = Started(server, tmp_path, "scenario", "steady", "--serve", str(server.log.parent), "--no-pin")
    with contextlib.ExitStack() as stack:
        stack.callback(started.process.wait)
        stack.callback(started.process.kill)
        until(lambda: "closed loop, " in started.text(), what=started.text)
        (served,) = Path(f"/proc/{started.process.pid}/task/{started.process.pid}/children").read_text().split()
        time.sleep(0.5)
        started.process.send_signal(signal.SIGTERM)
        assert started.wait() == 130, started.text()
    assert re.search(r"^BROKEN +all +whole_run +60 ", started.text(), re.MULTILINE), started.text()
    until_ended(int(served))


def test_a_second_ctrl_c_ends_at_once(server: RunningServer, start: Callable[..., Started], tmp_path: Path) -> None:
    """The server stands still: the answers that are waited for do not come."""
    junit = tmp_path / "junit.xml"
    started = start("run", "-t", "60s", "--rate", "200", "--timeout-s", "60", "--junit", str(junit))
    server.process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(0.5)
        started.process.send_signal(signal.SIGINT)
        time.sleep(1.0)
        assert started.process.poll() is None, started.text()
        started.process.send_signal(signal.SIGINT)
        assert started.wait() == 130, started.text()
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert "modelyard loadtest: interrupted" in started.text()
    assert not junit.exists()


@pytest.mark.parametrize("arguments", [(), ("run", "--rate", "200")], ids=["locust", "run"])
def test_background_jobs_of_a_shell_end_too(start: Callable[..., Started], arguments: tuple[str, ...]) -> None:
    """A shell has them ignore SIGINT."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        started = start(*arguments, "-t", "60s")
    finally:
        signal.signal(signal.SIGINT, previous)
    started.process.send_signal(signal.SIGINT)
    assert started.wait() == 130, started.text()
