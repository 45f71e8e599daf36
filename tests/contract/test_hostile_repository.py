"""A repository whose newest versions are there to hold a server up: the last good ones serve, and nothing hangs."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

from modelyard.artifact import LABELS_NAME, MANIFEST_NAME, WARMUP_FILE
from tests.support.admin import ask, available
from tests.support.hostile import make_large, nested_folders
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve
from tests.support.waiting import until


def damage(models: Path, stack: ExitStack) -> dict[str, str]:
    """Makes a damaged version 2 of each model; returns what its status says."""
    said = {}
    for name, text in {
        "config": "has more than 67,108,864 bytes",
        "device": "has 'model.tflite', which is a pipe, a socket or a device",
        "folders": "has more than 100 folders in each other",
        "graphs": "has more than 100 folders in each other",
        "large": "bytes of memory are left",
        "lines": "lacks a\n\x1b[2J, which its manifest lists",
        "manifest": "manifest.json has more than 8,388,608 bytes",
        "pipe": "has 'onnx/more.onnx', which is a pipe, a socket or a device",
        "saved": "expected up to 2,147,483,647",
        "warm": "tf_serving_warmup_requests is damaged at byte 0",
    }.items():
        folder = models / name / "2"
        shutil.copytree(models / name / "1" / "onnx", folder / "onnx")
        said[name] = text
        if name == "config":
            make_large(folder / "batching_params.pbtxt")
        elif name == "device":
            (folder / "model.tflite").symlink_to("/dev/zero")
        elif name in ("folders", "graphs"):
            stack.enter_context(nested_folders(folder if name == "folders" else folder / "onnx"))
        elif name == "pipe":
            os.mkfifo(folder / "onnx" / "more.onnx")
        elif name == "lines":
            document = json.loads((models / name / "1" / MANIFEST_NAME).read_bytes())
            del document["sha256"]
            document["files"][0]["path"] = "a\n\x1b[2J"
            (folder / MANIFEST_NAME).write_text(json.dumps(document))
        elif name == "manifest":
            make_large(folder / MANIFEST_NAME)
        elif name == "warm":
            (folder / WARMUP_FILE).parent.mkdir()
            make_large(folder / WARMUP_FILE)
        else:
            shutil.rmtree(folder / "onnx")
            make_large(folder / {"large": "model.tflite", "saved": "saved_model.pb"}[name])
    return said


def serves(server: RunningServer, name: str, number: int) -> None:
    until(lambda: available(server, name) == {number}, 60, f"{name}: version {number} does not serve")


def test_the_last_good_versions_serve(tmp_path: Path) -> None:
    models = tmp_path / "models"
    names = ("config", "device", "folders", "graphs", "labels", "large", "lines", "manifest", "pipe", "saved", "warm")
    for name in names:
        publish_affine(models / name, slope=2.0, intercept=0.0)
    make_large(models / "labels" / LABELS_NAME)
    # What is no model is in nobody's way, and writes no lines into the log.
    os.mkfifo(models / "pipe.onnx")
    (models / "loop").symlink_to("loop")
    (models / "long").symlink_to("n" * 300)
    (models / "labels" / "9").symlink_to("n" * 300)
    (models / "labels" / "7").symlink_to("7")
    (models / "labels" / "8").touch()
    (models / "none\x1b[2J\n").mkdir()
    (models / "none\x1b[2J\n" / "model.tflite").touch()
    with ExitStack() as stack:
        said = damage(models, stack)
        flags = ["--enable_batching", "--enable_per_model_batching_parameters", f"--model_repository={models}"]
        server = stack.enter_context(serve(None, model="labels", log_dir=tmp_path, flags=flags))
        for name in names:
            serves(server, name, 1)
            assert ask(server, name) == 2.0
        for name, text in said.items():
            rows = json.loads(server.get(f"/v1/models/{name}")[1])["model_version_status"]
            (row,) = (row for row in rows if row["version"] == "2")
            assert row["state"] == "END" and text in row["status"]["error_message"], row
        assert server.get("/v2/health/ready")[0] == 200
        log = server.log_text()
        assert "Traceback" not in log and "\x1b" not in log and "none\\x1b[2J\\n is no model" in log
        assert "lacks a\\n\\x1b[2J, which" in log
        # A good version after that.
        for name in ("folders", "labels", "pipe"):
            (models / name / "3").symlink_to(publish_affine(models / ".next" / name, slope=3.0, intercept=0.0).path)
            serves(server, name, 3)
