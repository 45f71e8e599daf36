"""The command line over a real process: what starts, what refuses to, and what it listens on."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import grpc
import pytest

from modelyard.errors import ConfigurationError
from modelyard.serving import parse_flags
from modelyard.wire import MODEL_SERVICE, serving_pb2
from tests.support.admin import ask, config_text, model_text, reload_config
from tests.support.models import publish_affine, publish_slow
from tests.support.server import free_port, run_to_end, serve


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    publish_affine(folder / "model", slope=2.0, intercept=0.0)
    publish_affine(folder / "other", slope=3.0, intercept=0.0)
    return folder


def test_help() -> None:
    code, output = run_to_end("--help")
    assert code == 0
    flags = ("--model_base_path", "--model_repository=/models", "--tensorflow_session_parallelism")
    for expected in (*flags, "MODEL_NAME", "--flag=value"):
        assert expected in output


def test_version() -> None:
    code, output = run_to_end("--version")
    assert (code, output.startswith("modelyard ")) == (0, True)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--nothing_like_it"], "Unknown argument --nothing_like_it. See --help"),
        (["stray"], "Unknown argument stray. A model's path is --model_base_path=stray, beside --model_name."),
        ([], "--model_base_path is required"),
        (["--model_base_path=models"], "to have an absolute path"),
        (["--model_base_path=/x", "--port=0", "--rest_api_port=0"], "expected at least one port"),
        (["--model_base_path=/x", "--port=80", "--rest_api_port=80"], "both 80; expected two numbers, one for gRPC"),
        (["--model_base_path=/x", "--device=openvino:TPU"], "--device=openvino:TPU; OpenVINO finds"),
        (["--model_base_path=/x", "--port=70000"], "expected a port from 0 to 65535"),
        (["--model_base_path=/x", "--enable_batching=maybe"], "expected true or false"),
        (["--model_base_path=/x", "--batching_parameters_file=/b"], "without setting --enable_batching"),
    ],
)
def test_flags_that_make_no_sense(flags: list[str], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(complaint)):
        parse_flags(flags)


def test_flags_that_make_no_sense_are_one_line_and_an_exit_code() -> None:
    code, output = run_to_end("--model_base_pth=/x")
    expected = "Unknown argument --model_base_pth. Did you mean --model_base_path?"
    assert (code, expected in output, len(output.splitlines())) == (2, True, 1), output


def test_a_port_in_use(models: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        base = f"--model_base_path={models / 'model'}"
        for flags in (
            [f"--port={port}"],
            [f"--port={free_port()}", f"--rest_api_port={port}"],
        ):
            code, output = run_to_end(base, *flags)
            assert (code, "Is the port in use?" in output or "Is it in use?" in output) == (1, True), output
            assert "Traceback" not in output


def test_a_core_that_cannot_be_loaded(models: Path, tmp_path: Path) -> None:
    (tmp_path / "modelyard_core.py").write_text("raise ImportError('built for another machine')")
    base = [f"--port={free_port()}", f"--model_base_path={models / 'model'}", "--transport=native"]
    code, output = run_to_end(*base, env={"PYTHONPATH": str(tmp_path)})
    assert (code, "Traceback" in output) == (1, False), output
    assert "modelyard_core is installed and cannot be loaded: built for another machine" in output


def test_a_unix_socket(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    flags = [f"--grpc_socket_path={path}", "--port=0"]
    with serve(models / "model", model="model", log_dir=tmp_path, flags=flags) as server:
        request = serving_pb2.GetModelStatusRequest()
        request.model_spec.name = "model"
        with grpc.insecure_channel(f"unix:{path}") as channel:
            call = channel.unary_unary(MODEL_SERVICE["GetModelStatus"].path, bytes, bytes)
            response = serving_pb2.GetModelStatusResponse.FromString(call(request.SerializeToString(), timeout=30))
        assert response.model_version_status[0].version == 1
        # Who reaches the socket is on this host.
        text = config_text(model_text("other", models / "other"))
        assert reload_config(server, text, address=f"unix:{path}") == ("OK", "")
        assert ask(server, "other") == 3.0


@pytest.mark.parametrize("flags", [[], ["--probe_loads"]])
def test_a_device(models: Path, tmp_path: Path, flags: list[str]) -> None:
    given = ["--device=openvino:CPU", *flags]
    with serve(models / "model", model="model", log_dir=tmp_path, flags=given) as server:
        assert ask(server, "model") == 2.0
        assert "with openvino on openvino:CPU" in server.log_text()


def test_channel_arguments_reach_grpc(models: Path, tmp_path: Path) -> None:
    flags = ["--grpc_channel_arguments=grpc.max_receive_message_length=1000,grpc.so_reuseport=0"]
    with serve(models / "model", model="model", log_dir=tmp_path, flags=flags) as server:
        with grpc.insecure_channel(server.grpc_address) as channel:
            call = channel.unary_unary(MODEL_SERVICE["GetModelStatus"].path, bytes, bytes)
            with pytest.raises(grpc.RpcError) as caught:
                call(b"x" * 2000, timeout=30)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("environment", "flags", "name", "expected"),
    [
        ({"MODEL_BASE_PATH": "{models}"}, [], "model", 2.0),
        ({"MODEL_BASE_PATH": "{models}", "MODEL_NAME": "other"}, [], "other", 3.0),
        ({"MODEL_BASE_PATH": "{models}", "MODEL_NAME": "other"}, ["--model_name=called"], "called", 3.0),
        ({"MODEL_BASE_PATH": "/nowhere", "MODEL_NAME": "other"}, ["--model_base_path={models}/model"], "other", 2.0),
    ],
)
def test_the_image_s_environment(
    models: Path, tmp_path: Path, environment: dict[str, str], flags: list[str], name: str, expected: float
) -> None:
    env = {key: value.format(models=models) for key, value in environment.items()}
    given = [flag.format(models=models) for flag in flags]
    with serve(None, model=name, log_dir=tmp_path, flags=given, env=env) as server:
        assert ask(server, name) == expected


def test_a_rest_time_out(tmp_path: Path) -> None:
    publish_slow(tmp_path / "slow", loops=1500)
    flags = ["--rest_api_timeout_in_ms=50"]
    with serve(tmp_path / "slow", model="slow", log_dir=tmp_path, flags=flags) as server:
        status, text = server.post("/v1/models/slow:predict", b'{"instances": [1.0]}')
        assert (status, "--rest_api_timeout_in_ms" in json.loads(text)["error"]) == (504, True)
    # 0 is upstream's none.
    with serve(tmp_path / "slow", model="slow", log_dir=tmp_path, flags=["--rest_api_timeout_in_ms=0"]) as server:
        assert ask(server, "slow") == 1.0
