"""Versions come and go while requests are answered."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

from modelyard.artifact import STAGING_PREFIX
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve

BODY = b'{"instances": [2.0]}'


def predict(server: RunningServer) -> float:
    status, text = server.post(f"/v1/models/{server.model}:predict", BODY)
    assert status == 200, text
    value: float = json.loads(text)["predictions"][0]
    return value


def states(server: RunningServer) -> dict[str, str]:
    rows = json.loads(server.get(f"/v1/models/{server.model}")[1])["model_version_status"]
    return {row["version"]: row["state"] for row in rows}


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
        status, text = server.post("/v1/models/affine:predict", BODY)
        assert status in (404, 503), text
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


def test_sigterm_lets_running_requests_finish(tmp_path: Path) -> None:
    model_dir = tmp_path / "affine"
    publish_affine(model_dir, slope=1.0, intercept=0.0)
    with serve(model_dir, model="affine", log_dir=tmp_path) as server:
        assert predict(server) == 2.0
        server.process.terminate()
        assert server.process.wait(timeout=20) == 0
        assert "stopped" in server.log_text()
