"""Several processes on one port: real ones, killed, changed, and counted together."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.admin import ask, config_text, model_text, reload_config
from tests.support.metrics import monitoring_flag, scrape, value
from tests.support.models import publish_affine
from tests.support.server import RunningServer, free_port, run_to_end, serve

#: Each request has a connection of its own, and the kernel chooses a worker for it: all of 2 are asked by so many.
MANY = 24


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, slope in (("one", 1.0), ("two", 2.0), ("three", 3.0)):
        publish_affine(folder / name, slope=slope, intercept=0.0)
    return folder


@pytest.fixture
def server(models: Path, tmp_path: Path) -> Iterator[RunningServer]:
    flags = ["--workers=2", "--verbose", monitoring_flag(tmp_path)]
    with serve(models / "one", model="one", log_dir=tmp_path, flags=flags) as running:
        running.wait_until(lambda: "all 2 workers listen" in running.log_text(), 60, "listening")
        yield running


def test_verbose_is_for_all_workers(server: RunningServer) -> None:
    workers = children(server.process.pid)
    assert len(workers) == 2
    for worker in workers:
        assert b"TF_CPP_MIN_LOG_LEVEL=0" in Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")


def answers(server: RunningServer, model: str) -> set[object]:
    return {ask(server, model) for _ in range(MANY)}


def children(process: int) -> set[int]:
    """The supervisor's workers, without one that is only about to be one: whoever stops that, stops its parent, too."""
    found = set()
    for pid in map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()):
        # One that has just ended is none.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if b"modelyard.serving.runtime.workers" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


def wait_for_the_end(processes: set[int]) -> None:
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in processes):
        assert time.monotonic() < deadline, "a worker outlives its supervisor"
        time.sleep(0.05)


def requests(server: RunningServer) -> float:
    return value(scrape(server), ":tensorflow:serving:request_count", model_name="one", status="OK")


def kill_one(server: RunningServer) -> int:
    before = children(server.process.pid)
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    server.wait_until(lambda: len(children(server.process.pid) - {victim}) == 2, 10, "starting another")
    return victim


def test_the_page_has_the_sum_of_all_and_of_the_dead(server: RunningServer) -> None:
    begin = requests(server)
    for _ in range(50):
        ask(server, "one")
    assert [requests(server) for _ in range(MANY)] == [begin + 50] * MANY
    page = scrape(server)
    assert (
        value(page, ":tensorflow:serving:request_latency_count", model_name="one", API="predict", entrypoint="REST")
        == begin + 50
    )
    kill_one(server)
    assert requests(server) == begin + 50
    server.wait_until(lambda: server.log_text().count("listening: ") == 3, 30, "listening again")
    ask(server, "one")
    assert requests(server) == begin + 51


def test_one_that_is_killed_is_replaced_and_the_others_answer(server: RunningServer) -> None:
    failures: list[object] = []
    good = 0
    stop = threading.Event()

    def load() -> None:
        nonlocal good
        while not stop.is_set():
            try:
                answer = ask(server, "one")
            except OSError as exc:
                failures.append(exc)
            else:
                good += answer == 1.0

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    started = time.monotonic()
    kill_one(server)
    seconds = time.monotonic() - started
    server.wait_until(lambda: server.log_text().count("listening: ") == 3, 30, "listening again")
    time.sleep(0.3)
    stop.set()
    for thread in threads:
        thread.join()
    assert seconds < 1.0
    # What the killed one held is lost, a request for each thread at most; its connections in waiting as well.
    assert len(failures) <= 2 * len(threads)
    assert good > 20


def test_a_change_reaches_all_and_those_that_come_later(server: RunningServer, models: Path) -> None:
    wanted = config_text(model_text("one", models / "one"), model_text("two", models / "two"))
    assert reload_config(server, wanted) == ("OK", "")
    assert (answers(server, "one"), answers(server, "two")) == ({1.0}, {2.0})
    kill_one(server)
    server.wait_until(lambda: server.log_text().count("listening: ") == 3, 30, "listening again")
    assert (answers(server, "one"), answers(server, "two")) == ({1.0}, {2.0})


def test_a_change_that_is_refused_changes_none(server: RunningServer, models: Path) -> None:
    labelled = model_text("one", models / "one", labels={"stable": 7})
    code, message = reload_config(server, config_text(labelled))
    assert code == "FAILED_PRECONDITION"
    assert message.startswith("Request to assign label 'stable' to version 7 of model one")
    assert answers(server, "one") == {1.0}


def test_models_come_and_go_everywhere(models: Path, tmp_path: Path) -> None:
    flags = ["--workers=2", "--model_control_mode=explicit"]
    with serve(models / "one", model="one", log_dir=tmp_path, flags=flags, wait=False) as server:
        server.wait_until(lambda: "all 2 workers listen" in server.log_text(), 60, "listening")
        assert server.post("/v2/repository/models/one/load", b"")[0] == 200
        assert answers(server, "one") == {1.0}
        assert server.post("/v2/repository/models/one/unload", b"")[0] == 200
        assert {answer[0] for answer in answers(server, "one")} == {404}  # type: ignore[index]


@pytest.mark.parametrize("wait_s", [0.0, 0.4, 0.7])
def test_they_end_with_a_supervisor_that_is_killed_while_they_start(
    models: Path, tmp_path: Path, wait_s: float
) -> None:
    with serve(models / "one", model="one", log_dir=tmp_path, flags=["--workers=2"], wait=False) as server:
        server.wait_until(lambda: len(children(server.process.pid)) == 2, 20, "starting workers")
        workers = children(server.process.pid)
        time.sleep(wait_s)
        server.process.kill()
        server.process.wait()
        wait_for_the_end(workers)


@contextlib.contextmanager
def one_late(models: Path, folder: Path) -> Iterator[tuple[RunningServer, int]]:
    """A server with two workers, of which one has its model, and the other one stands still."""
    with serve(models / "one", model="one", log_dir=folder, flags=["--workers=2"], wait=False) as server:
        server.wait_until(lambda: len(children(server.process.pid)) == 2, 20, "starting workers")
        late = max(children(server.process.pid))
        os.kill(late, signal.SIGSTOP)
        server.wait_until(lambda: "version 1 is AVAILABLE" in server.log_text(), 20, "loading in the other worker")
        yield server, late


def test_the_first_ones_begin_together(models: Path, tmp_path: Path) -> None:
    """Whoever was told by one that the model is there may ask any."""
    with one_late(models, tmp_path) as (server, late):
        time.sleep(0.5)
        with pytest.raises(urllib.error.URLError):
            ask(server, "one")
        os.kill(late, signal.SIGCONT)
        server.wait_available()
        assert answers(server, "one") == {1.0}
        server.wait_until(lambda: "all 2 workers listen" in server.log_text(), 20, "listening")
        assert answers(server, "one") == {1.0}


def test_sigterm_while_they_start(models: Path, tmp_path: Path) -> None:
    with one_late(models, tmp_path) as (server, late):
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        os.kill(late, signal.SIGCONT)
        assert server.process.wait(timeout=30) == 0
        assert time.monotonic() - began < 10
        assert "listening" not in server.log_text()


def test_they_end_with_their_supervisor_and_at_sigterm(models: Path, tmp_path: Path) -> None:
    with serve(models / "one", model="one", log_dir=tmp_path, flags=["--workers=2"]) as server:
        workers = children(server.process.pid)
        assert len(workers) == 2
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    with serve(models / "one", model="one", log_dir=tmp_path, flags=["--workers=2"]) as server:
        workers = children(server.process.pid)
        server.process.kill()
        server.process.wait()
        wait_for_the_end(workers)


def test_what_no_worker_can_do_ends_the_server(models: Path, tmp_path: Path) -> None:
    (tmp_path / "modelyard_core.py").write_text("raise ImportError('built for another machine')")
    base = [f"--port={free_port()}", "--rest_api_port=0", f"--model_base_path={models / 'one'}", "--workers=2"]
    code, log = run_to_end(*base, env={"PYTHONPATH": str(tmp_path)})
    assert code == 1
    assert "modelyard_core is installed and cannot be loaded: built for another machine" in log
    assert "could not start; stopping" in log


def test_a_port_in_use_is_an_error(server: RunningServer, models: Path) -> None:
    code, log = run_to_end(f"--port={server.grpc_port}", f"--model_base_path={models / 'one'}", "--workers=2")
    assert code == 1
    assert f"Port {server.grpc_port} cannot be listened on" in log


def test_one_unix_socket_is_for_one_process(models: Path, tmp_path: Path) -> None:
    flags = [f"--grpc_socket_path={tmp_path / 's'}", f"--model_base_path={models / 'one'}", "--workers=3"]
    code, log = run_to_end(*flags)
    assert code == 2
    assert "--workers=3 and --grpc_socket_path are both set" in log
