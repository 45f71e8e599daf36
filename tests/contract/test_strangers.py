"""What callers choose never names a file, and what they are told never says where files are."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import text_format

from modelyard.wire import INFERENCE_SERVICE, MODEL_SERVICE, inference_pb2, serving_pb2
from tests.support.admin import config_text, model_text
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve

BAD_NAMES = ["../escape", "a/../b", "/absolute", "a//b", ".", "nul\\000", "line\\n", "x" * 256]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strangers")
    publish_affine(folder / "models" / "affine", slope=1.0, intercept=0.0)
    broken = folder / "models" / "broken" / "1"
    broken.mkdir(parents=True)
    (broken / "model.onnx").write_bytes(b"no graph")
    (folder / "models" / "empty").mkdir()
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    models = [model_text(name, folder / "models" / name) for name in ("affine", "broken", "empty")]
    (folder / "models.config").write_text(config_text(*models))
    flags = [f"--model_config_file={folder / 'models.config'}", f"--remote_cache_dir={folder / 'cache'}"]
    with serve(None, model="affine", log_dir=folder, flags=flags) as running:
        running.wait_until(lambda: "cannot be served" in running.log_text(), 60, "trying the broken model")
        yield running


def call(server: RunningServer, path: str, message: Any) -> tuple[str, str]:
    """Status and text of a gRPC call; the answer's text where it succeeds."""
    with grpc.insecure_channel(server.grpc_address) as channel:
        try:
            return "OK", str(channel.unary_unary(path, bytes, bytes)(message.SerializeToString(), timeout=30))
        except grpc.RpcError as exc:
            return exc.code().name, exc.details() or ""


def reload_config(server: RunningServer, text: str) -> tuple[str, str]:
    config = text_format.Parse(text, serving_pb2.ModelServerConfig())
    return call(server, MODEL_SERVICE["HandleReloadConfigRequest"].path, serving_pb2.ReloadConfigRequest(config=config))


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_are_none_are_refused(server: RunningServer, folder: Path, name: str) -> None:
    before = sorted(folder.rglob("*"))
    for config in (
        model_text(name, folder / "models" / "affine"),
        model_text("affine", folder / "models" / "affine", labels={name: 1}),
    ):
        code, text = reload_config(server, config_text(config))
        assert (code, "cannot be used; expected up to 255 bytes of text" in text) == ("INVALID_ARGUMENT", True)
    code, text = reload_config(server, config_text(model_text("affine", "/models\\000")))
    assert (code, "NUL" in text) == ("INVALID_ARGUMENT", True)
    assert sorted(folder.rglob("*")) == before
    assert server.get("/v1/models/affine")[0] == 200


@pytest.mark.parametrize("model", ["broken", "empty"])
def test_nobody_is_told_where_files_are(server: RunningServer, folder: Path, model: str) -> None:
    status = serving_pb2.GetModelStatusRequest()
    status.model_spec.name = model
    texts = [
        server.get(f"/v1/models/{model}")[1],
        server.post(f"/v1/models/{model}:predict", b'{"instances": [1]}')[1],
        server.post("/v2/repository/index", b"")[1],
        call(server, INFERENCE_SERVICE["RepositoryIndex"].path, inference_pb2.RepositoryIndexRequest())[1],
        call(server, MODEL_SERVICE["GetModelStatus"].path, status)[1],
    ]
    assert [text for text in texts if str(folder) in text or "/models/" in text.replace("/v1/models/", "")] == []
    if model == "broken":
        # The reason itself is there, and the log has all of it.
        (row,) = json.loads(texts[0])["model_version_status"]
        assert "model.onnx" in row["status"]["error_message"]
    assert str(folder / "models" / model) in server.log_text()


@pytest.mark.parametrize("where", ["http://{}/m", "ftp://{}/m", "simplecache::http://{}/m", "s3://b/m::http://{}/m"])
def test_no_configuration_makes_the_server_ask_another_address(server: RunningServer, folder: Path, where: str) -> None:
    """Such as that of a cloud's metadata: base paths are of this machine or of an object store."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        url = where.format(f"127.0.0.1:{listener.getsockname()[1]}")
        affine = model_text("affine", folder / "models" / "affine")
        code, text = reload_config(server, config_text(affine, model_text("inward", url)))
        assert code == "INVALID_ARGUMENT" and "is not on a file system that is known here" in text
        with pytest.raises(TimeoutError):
            listener.accept()
    assert server.get("/v1/models/inward")[0] == 404
    assert server.get("/v1/models/affine")[0] == 200
