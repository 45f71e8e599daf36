"""docs/rollouts.md: its example, step by step, with its own files and commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from modelyard.cli import main
from modelyard.serving.config import RollbackLimits, read_traffic_file
from modelyard.serving.metrics import FAMILIES
from modelyard.wire import traffic_pb2
from tests.support.models import publish_affine
from tests.support.pages import ROOT, blocks
from tests.support.server import RunningServer, serve

PAGE = (ROOT / "docs/rollouts.md").read_text("utf-8")
FILES = blocks("docs/rollouts.md", "protobuf")
COMMANDS = [
    shlex.split(line)
    for block in blocks("docs/rollouts.md", "bash")
    for line in block.replace("\\\n", " ").splitlines()
]
WAIT_S = 60


def version_of(server: RunningServer, headers: Mapping[str, str] | None = None) -> int:
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]}
    status, text = server.post("/v2/models/fashion/infer", json.dumps(body).encode(), headers)
    assert status == 200, text
    return int(json.loads(text)["model_version"])


def test_the_example(tmp_path: Path) -> None:
    traffic = tmp_path / "traffic.config"
    model = tmp_path / "repository" / "fashion"
    labels = iter([command for command in COMMANDS if command[:3] == ["modelyard", "repo", "label"]])
    (start,) = [command for command in COMMANDS if command[:2] == ["modelyard", "serve"]]
    curls = [command for command in COMMANDS if command[0] == "curl"]
    first, shadow, canary = FILES

    def label() -> None:
        assert main([part.replace("repository/", f"{tmp_path}/repository/") for part in next(labels)[1:]]) == 0

    def put(text: str) -> None:
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").replace(traffic)

    publish_affine(model, slope=1.0, intercept=0.0)
    label()
    put(first)
    flags = [
        part.replace("$PWD", str(tmp_path)).replace("=traffic", f"={traffic.parent}/traffic").replace(
            "=rolled", f"={tmp_path}/rolled"
        )
        for part in start[2:]
        if not part.startswith("--rest_api_port")
    ]  # fmt: skip
    with serve(None, model="fashion", log_dir=tmp_path, flags=flags) as server:

        def until(condition: Callable[[], bool], what: str) -> None:
            server.wait_until(condition, WAIT_S, what)

        def rows() -> dict[str, dict[str, object]]:
            return {row["target"]: row for row in json.loads(server.get("/v2/traffic")[1])["targets"]}

        publish_affine(model, slope=1.0, intercept=0.0)
        until(lambda: '"AVAILABLE"' in server.get("/v1/models/fashion/versions/2")[1], "version 2 loaded")
        assert {version_of(server) for _ in range(20)} == {1}

        label()
        put(shadow)
        until(lambda: "canary" in rows() and rows()["canary"]["version"] == 2, "the shadow")
        assert {version_of(server) for _ in range(40)} == {1}
        until(lambda: rows()["canary"]["shadow_rows"] != 0, "comparing")
        assert rows()["canary"]["disagreed"] == 0

        put(canary)
        until(lambda: rows()["canary"]["role"] == "canary", "the canary")
        for curl in curls:
            headers = dict(curl[at + 1].split(": ") for at, part in enumerate(curl) if part == "-H")
            path = curl[-1].replace("http://localhost:8501", "")
            assert server.post(path, curl[curl.index("-d") + 1].encode(), headers)[0] == 200
        assert version_of(server, {"x-model-version": "canary"}) == 2
        users = [f"user-{number}" for number in range(200)]
        got = {user: version_of(server, {"x-user-id": user}) for user in users}
        assert 1 <= list(got.values()).count(2) <= 30

        label()
        put(first)
        until(lambda: "canary" not in rows() and version_of(server) == 2, "the promotion")
        assert rows()["stable"]["share"] == 1.0
    assert (tmp_path / "rolled_back.json").exists()


def test_every_field_and_metric_is_on_the_page(tmp_path: Path) -> None:
    for text in FILES:
        (tmp_path / "traffic.config").write_text(text)
        assert list(read_traffic_file(tmp_path / "traffic.config")) == ["fashion"]
    limits = RollbackLimits()
    for message in (traffic_pb2.ModelTraffic, traffic_pb2.RollbackLimits):
        for field in message.DESCRIPTOR.fields:
            assert f"`{field.name}" in PAGE, field.name
    assert f"before anything is said; {limits.min_samples}." in PAGE
    assert f"how long is looked back; {limits.window_s:g} " in PAGE
    for name, *_ in FAMILIES:
        assert ("traffic_" in name or "shadow_" in name) == (f"`{name}`" in PAGE), name
