"""The flags that limit what clients may have a server hold."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path

import grpc
import pytest

from modelyard.errors import ConfigurationError
from modelyard.serving import parse_flags
from modelyard.serving.config import FLAGS
from tests.support.metrics import monitoring_flag, scrape, value
from tests.support.models import publish_affine
from tests.support.server import serve

_NEEDED = ["--model_base_path=/models/m", "--rest_api_port=8501"]


def test_defaults_and_no_limits() -> None:
    limits = parse_flags([*_NEEDED, "--transport=python"]).limits
    assert (limits.max_connections, limits.max_streams, limits.max_header_bytes) == (10_000, 256, 32 << 10)
    assert (limits.header_timeout_s, limits.body_timeout_s, limits.idle_timeout_s) == (20.0, 20.0, 75.0)
    none = [f"--{name}=0" for name in ("max_connections", "max_concurrent_streams", "header_timeout_seconds")]
    limits = parse_flags([*_NEEDED, "--transport=python", "--idle_timeout_seconds=0", *none]).limits
    assert (limits.max_connections, limits.max_streams) == (0, (1 << 31) - 1)
    assert limits.header_timeout_s == limits.idle_timeout_s > 1e8


@pytest.mark.parametrize(
    ("transport", "flag", "words"),
    [
        (
            "python",
            "--body_timeout_seconds=1",
            "--body_timeout_seconds=1.0 is no limit of --transport=python",
        ),
        ("python", "--max_header_bytes=100", "expected 8192 or more"),
        ("python", "--idle_timeout_seconds=-1", "expected 0 or more"),
    ],
)
def test_no_limit_is_ignored_in_silence(transport: str, flag: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse_flags([*_NEEDED, f"--transport={transport}", flag])


def test_no_request_is_let_in_that_is_larger_than_the_budget() -> None:
    pytest.importorskip("modelyard_core", reason="needs the distribution modelyard-core")
    options = parse_flags([*_NEEDED, "--transport=native", "--max_inflight_bytes=1000"])
    assert options.max_body_bytes == options.limits.largest(1 << 31) == 1000


@pytest.mark.parametrize("transport", ["native", "python"])
def test_the_flags_reach_the_transport(tmp_path: Path, transport: str) -> None:
    if transport == "native":
        pytest.importorskip("modelyard_core", reason="needs the distribution modelyard-core")
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    flags = ["--max_connections=2", "--max_header_bytes=9000", "--header_timeout_seconds=1", "--idle_timeout_seconds=1"]
    flags += [f"--transport={transport}", monitoring_flag(tmp_path)]
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags) as server:

        def status(**headers: str) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=20)
            try:
                connection.request("GET", "/v1/models/affine", headers={**headers, "Connection": "close"})
                return connection.getresponse().status
            finally:
                connection.close()

        assert (status(), status(X="a" * 10_000)) == (200, 431 if transport == "native" else 400)
        address = ("127.0.0.1", server.rest_port)
        with socket.create_connection(address, timeout=20) as first, socket.create_connection(address, timeout=20):
            first.sendall(b"GET / HT")
            server.wait_until(lambda: status() == 503, 10.0, "full")
            assert (b" 408 " in first.recv(65536)) == (transport == "native")
        server.wait_until(lambda: status() == 200, 10.0, "free again")
        refused = value(scrape(server), ":modelyard:serving:refused", reason="connections", model="")
        assert refused >= 1
        with grpc.insecure_channel(server.grpc_address) as channel:
            grpc.channel_ready_future(channel).result(timeout=20)


@pytest.mark.parametrize("transport", ["native", "python"])
def test_every_number_at_its_largest(tmp_path: Path, transport: str) -> None:
    publish_affine(tmp_path / "affine", slope=2.0, intercept=1.0)
    (tmp_path / "models.config").write_text(f"""model_config_list {{ config {{
        name: "affine" base_path: "{tmp_path / "affine"}" model_platform: "tensorflow"
        logging_config {{
            log_collector_config {{ filename_prefix: "{tmp_path / "log"}" }} sampling_config {{ sampling_rate: 1 }}
        }}
    }} }}""")
    # Upstream takes the largest number of 64 bits for no limit.
    (tmp_path / "batching.config").write_text(
        f"max_batch_size {{ value: 64 }} max_enqueued_batches {{ value: {(1 << 63) - 1} }}"
    )
    # These would be done: threads, copies of a model, repetitions and a pause; or exclude each other.
    done = {"num_tflite_pools", "num_request_iterations_for_warmup", "shutdown_delay_seconds"}
    flags = [
        f"--{flag.name}={flag.largest}"
        for flag in FLAGS
        if flag.kind in ("int", "float")
        and not flag.name.endswith(("port", "_parallelism"))
        and flag.name not in done
        and not (flag.native_only and transport == "python")
    ]
    for more in (
        ["--enable_batching", f"--batching_parameters_file={tmp_path / 'batching.config'}"],
        ["--probe_loads"],
    ):
        flags_of_all = [*flags, *more, f"--model_config_file={tmp_path / 'models.config'}", f"--transport={transport}"]
        with serve(None, model="affine", log_dir=tmp_path, flags=flags_of_all) as server:
            nested = b"[" * 490 + b"1.0" + b"]" * 490
            for _ in range(2):
                assert server.post("/v1/models/affine:predict", b'{"instances": [1.0]}')[0] == 200
                assert server.post("/v1/models/affine:predict", b'{"instances": ' + nested + b"}")[0] == 400
            server.process.terminate()
            assert server.process.wait(30) == 0
        assert "Traceback" not in server.log_text()
