"""Versions come and go while requests are answered."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from modelyard.artifact import STAGING_PREFIX
from tests.support.admin import config_text, model_text, reload_config
from tests.support.models import publish_affine, publish_slow
from tests.support.server import RunningServer, serve

BODY = b'{"instances": [2.0]}'


def predict(server: RunningServer) -> float:
    status, text = server.post(f"/v1/models/{server.model}:predict", BODY)
    assert status == 200, text
    value: float = json.loads(text)["predictions"][0]
    return value


def states(server: RunningServer) -> dict[str, str]:
    # Before the first look there is nothing but an error.
    rows = json.loads(server.get(f"/v1/models/{server.model}")[1]).get("model_version_status", [])
    return {row["version"]: row["state"] for row in rows}


def cpu_seconds(server: RunningServer) -> float:
    times = psutil.Process(server.process.pid).cpu_times()
    return float(times.user)


def test_a_new_version_is_picked_up_with_no_failed_request(tmp_path: Path) -> None:
    model_dir = tmp_path / "affine"
    publish_affine(model_dir, slope=1.0, intercept=0.0)
    answers: list[float] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    with serve(model_dir, model="affine", log_dir=tmp_path) as server:

        def load() -> None:
            while not stop.is_set():
                try:
                    answers.append(predict(server))
                except BaseException as exc:
                    failures.append(exc)
                    return

        callers = [threading.Thread(target=load) for _ in range(4)]
        for caller in callers:
            caller.start()
        try:
            for slope in (2, 3, 4):
                server.wait_available(publish_affine(model_dir, slope=float(slope), intercept=0.0).number)
        finally:
            server.wait_until(lambda: predict(server) == 8.0, 30, "answering from the last version")
            stop.set()
            for caller in callers:
                caller.join()
        assert failures == []
        assert set(answers) <= {2.0, 4.0, 6.0, 8.0}
        assert len(answers) > 10
        server.wait_until(
            lambda: states(server) == {"1": "END", "2": "END", "3": "END", "4": "AVAILABLE"},
            30,
            "unloading old versions",
        )


def test_a_damaged_version_is_refused_and_the_old_one_stays(tmp_path: Path) -> None:
    model_dir = tmp_path / "affine"
    publish_affine(model_dir, slope=1.0, intercept=0.0)
    with serve(model_dir, model="affine", log_dir=tmp_path) as server:
        published = publish_affine(tmp_path / "elsewhere", slope=9.0, intercept=0.0)
        file = published.path / "onnx" / "serving_default.onnx"
        good = file.read_bytes()
        file.write_bytes(good[:-4] + bytes(byte ^ 0xFF for byte in good[-4:]))
        published.path.rename(model_dir / "2")
        server.wait_until(lambda: states(server).get("2") == "END", 30, "version 2 refused")
        row = json.loads(server.get("/v1/models/affine/versions/2")[1])["model_version_status"][0]
        assert row["status"]["error_code"] == "DATA_LOSS"
        assert "sha256" in row["status"]["error_message"]
        assert predict(server) == 2.0
        # Mended in place, it is tried again; the old version served until then.
        (model_dir / "2" / "onnx" / "serving_default.onnx").write_bytes(good)
        server.wait_until(lambda: states(server).get("2") == "AVAILABLE", 30, "version 2 AVAILABLE")
        assert predict(server) == 18.0


def test_staging_directories_are_invisible(tmp_path: Path) -> None:
    model_dir = tmp_path / "affine"
    publish_affine(model_dir, slope=1.0, intercept=0.0)
    shutil.copytree(model_dir / "1", model_dir / f"{STAGING_PREFIX}abc")
    with serve(model_dir, model="affine", log_dir=tmp_path) as server:
        assert states(server) == {"1": "AVAILABLE"}


def test_requests_before_the_first_version_are_told_so(tmp_path: Path) -> None:
    model_dir = tmp_path / "affine"
    with serve(model_dir, model="affine", log_dir=tmp_path, wait=False) as server:
        server.wait_until(lambda: server.get("/v1/models/affine")[0] == 404, 30, "listening")
        server.wait_until(lambda: "cannot be read" in server.log_text(), 30, "noticing")
        status, text = server.post("/v1/models/affine:predict", BODY)
        assert (status, "nothing is loaded: base path affine cannot be read" in text) == (404, True), text
        publish_affine(model_dir, slope=1.0, intercept=1.0)
        server.wait_available()
        assert predict(server) == 3.0


def test_a_vanished_base_path_unloads_nothing(tmp_path: Path) -> None:
    model_dir = tmp_path / "affine"
    publish_affine(model_dir, slope=1.0, intercept=0.0)
    with serve(model_dir, model="affine", log_dir=tmp_path) as server:
        model_dir.rename(tmp_path / "away")
        server.wait_until(lambda: "cannot be read" in server.log_text(), 30, "noticing")
        assert predict(server) == 2.0


def test_leading_zeros_and_duplicates_of_one_number(tmp_path: Path) -> None:
    model_dir = tmp_path / "affine"
    for slope in (1, 2, 3):
        publish_affine(model_dir, slope=float(slope), intercept=0.0)
    (model_dir / "1").rename(model_dir / "0000017")
    (model_dir / "2").rename(model_dir / "017")
    (model_dir / "3").rename(model_dir / "3.denied")
    (model_dir / "non_numerical_child").mkdir()
    with serve(model_dir, model="affine", log_dir=tmp_path) as server:
        assert states(server) == {"17": "AVAILABLE"}
        # Which of the two it is does not matter, as upstream; it is one of them.
        assert predict(server) in (2.0, 4.0)
        assert server.post("/v1/models/affine/versions/17:predict", BODY)[0] == 200
        (model_dir / "3.denied").rename(model_dir / "20170111173521")
        server.wait_until(lambda: states(server).get("20170111173521") == "AVAILABLE", 30, "a timestamp as version")
        assert predict(server) == 6.0


def test_versions_that_are_taken_away(tmp_path: Path) -> None:
    model_dir = tmp_path / "affine"
    for slope in (1, 2):
        publish_affine(model_dir, slope=float(slope), intercept=0.0)
    with serve(model_dir, model="affine", log_dir=tmp_path) as server:
        assert predict(server) == 4.0
        # Back to the version before.
        (model_dir / "2").rename(tmp_path / "away")
        server.wait_until(lambda: states(server) == {"1": "AVAILABLE", "2": "END"}, 30, "version 1 again")
        assert predict(server) == 2.0
        # An empty base path unloads everything, and is watched on.
        (model_dir / "1").rename(tmp_path / "away too")
        server.wait_until(lambda: states(server) == {"1": "END", "2": "END"}, 30, "unloading everything")
        status, text = server.post("/v1/models/affine:predict", BODY)
        assert (status, "Servable not found for request: Latest(affine)" in text) == (404, True)
        (tmp_path / "away").rename(model_dir / "2")
        server.wait_until(lambda: states(server)["2"] == "AVAILABLE", 30, "version 2 again")
        assert predict(server) == 4.0


def test_looking_once(tmp_path: Path) -> None:
    model_dir = tmp_path / "affine"
    publish_affine(model_dir, slope=1.0, intercept=0.0)
    flags = ["--file_system_poll_wait_seconds=0"]
    with serve(model_dir, model="affine", log_dir=tmp_path, flags=flags) as server:
        publish_affine(model_dir, slope=2.0, intercept=0.0)
        # A reload is another occasion to look.
        again = config_text(model_text("affine", model_dir))
        assert predict(server) == 2.0
        assert states(server) == {"1": "AVAILABLE"}
        assert reload_config(server, again) == ("OK", "")
        assert predict(server) == 2.0
        changed = config_text(model_text("affine", model_dir, policy="latest { num_versions: 3 }"))
        assert reload_config(server, changed) == ("OK", "")
        assert predict(server) == 4.0


def test_never_looking(tmp_path: Path) -> None:
    model_dir = tmp_path / "affine"
    publish_affine(model_dir, slope=1.0, intercept=0.0)
    flags = ["--file_system_poll_wait_seconds=-1"]
    with serve(model_dir, model="affine", log_dir=tmp_path, flags=flags, wait=False) as server:
        server.wait_until(lambda: server.get("/v1/models/affine")[0] == 404, 30, "listening")
        status, text = server.post("/v1/models/affine:predict", BODY)
        assert (status, "--file_system_poll_wait_seconds is negative" in text) == (404, True)


@pytest.mark.parametrize("preserving", [False, True])
def test_the_order_of_a_swap(tmp_path: Path, preserving: bool) -> None:
    model_dir = tmp_path / "affine"
    publish_affine(model_dir, slope=1.0, intercept=0.0)
    flags = ["--resource_preserving"] if preserving else []
    with serve(model_dir, model="affine", log_dir=tmp_path, flags=flags) as server:
        publish_affine(model_dir, slope=2.0, intercept=0.0)
        server.wait_until(lambda: states(server) == {"1": "END", "2": "AVAILABLE"}, 30, "swapped")
        lines = ("model affine version 1 is unloaded", "model affine version 2 is AVAILABLE")
        server.wait_until(lambda: all(line in server.log_text() for line in lines), 30, "saying so")
        log = server.log_text()
        unloaded = log.index("model affine version 1 is unloaded")
        assert (unloaded < log.index("loading model affine version 2")) is preserving
        assert (unloaded > log.index("model affine version 2 is AVAILABLE")) is not preserving


def test_a_swap_that_preserves_resources_and_fails_loses_the_old_version(tmp_path: Path) -> None:
    model_dir = tmp_path / "affine"
    publish_affine(model_dir, slope=1.0, intercept=0.0)
    with serve(model_dir, model="affine", log_dir=tmp_path, flags=["--resource_preserving=true"]) as server:
        (model_dir / "2").mkdir()
        server.wait_until(lambda: states(server) == {"1": "END", "2": "END"}, 30, "refusing version 2")
        status, text = server.post("/v1/models/affine:predict", BODY)
        assert (status, "holds no model" in text) == (404, True)


def test_a_start_with_a_damaged_version_serves_the_last_good_one(tmp_path: Path) -> None:
    model_dir = tmp_path / "affine"
    publish_affine(model_dir, slope=1.0, intercept=0.0)
    (model_dir / "2").mkdir()
    with serve(model_dir, model="affine", log_dir=tmp_path) as server:
        assert states(server) == {"1": "AVAILABLE", "2": "END"}
        assert (predict(server), server.get("/v2/health/ready")[0]) == (2.0, 200)
        assert "model affine: version 1 is served until a newer one can be" in server.log_text()
        assert "holds no model" in server.get("/v1/models/affine/versions/2")[1]
        shutil.copytree(model_dir / "1", model_dir / "2", dirs_exist_ok=True)
        server.wait_until(lambda: states(server) == {"1": "END", "2": "AVAILABLE"}, 30, "trying again")


def test_requests_keep_their_version_while_it_is_unloaded(tmp_path: Path) -> None:
    model_dir = tmp_path / "slow"
    publish_slow(model_dir, loops=5000)
    with serve(model_dir, model="slow", log_dir=tmp_path) as server, ThreadPoolExecutor(2) as pool:
        busy = cpu_seconds(server)
        answers = [pool.submit(server.post, "/v1/models/slow/versions/1:predict", BODY) for _ in range(2)]
        server.wait_until(lambda: cpu_seconds(server) > busy + 0.5, 30, "computing")
        (model_dir / "1").rename(tmp_path / "away")
        server.wait_until(lambda: states(server) == {"1": "UNLOADING"}, 30, "waiting for the requests")
        assert server.post("/v1/models/slow:predict", BODY)[0] == 404
        assert [answer.result()[0] for answer in answers] == [200, 200]
        server.wait_until(lambda: states(server) == {"1": "END"}, 30, "unloaded")
