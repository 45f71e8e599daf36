"""Who may do what, over every API: keys, web tokens, scopes, quotas, and who may administer."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import jwt
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf import text_format
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from modelyard.cli import main
from modelyard.clients import ClientOptions, RetryOptions, connect
from modelyard.errors import OverloadedError, PermissionDeniedError, UnauthenticatedError
from modelyard.serving.handlers.oip import ROUTES
from modelyard.wire import INFERENCE_SERVICE, MODEL_SERVICE, PREDICTION_SERVICE, inference_pb2, serving_pb2
from tests.support.access import (
    AUDIENCE,
    BODY,
    GRPC,
    ISSUER,
    ODD_BODY,
    REST,
    SCOPES,
    Issuer,
    bearer,
    call,
    claims_entry,
    entry,
    key_of,
    send,
    write_jwks,
)
from tests.support.admin import config_text, model_text
from tests.support.models import publish_affine, publish_slow
from tests.support.server import RunningServer, free_port, serve


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("access")
    publish_affine(folder / "models" / "affine", slope=2.0, intercept=1.0)
    publish_affine(folder / "models" / "other", slope=3.0, intercept=0.0)
    publish_slow(folder / "models" / "slow", loops=300)
    return folder


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer(private=Ed25519PrivateKey.generate(), key_id="first")


@pytest.fixture(scope="module")
def access_text(folder: Path, issuer: Issuer) -> str:
    write_jwks(folder / "jwks.json", issuer)
    return "\n".join(
        [
            f'[jwt]\njwks = "jwks.json"\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n',
            *(entry(scope, scope) for scope in SCOPES),
            entry("narrow", "predict:aff*", "metadata:affine", "admin:other"),
            entry("reader", "predict", "metadata"),
            entry("keeper", "metadata", "admin:aff*"),
            entry("requests", "predict", "metadata", requests_per_second=2),
            *(entry(f"rows{index}", "predict", "metadata", rows_per_second=100) for index in range(3)),
            entry("one", "predict", max_in_flight=1),
            claims_entry("team", '{groups = "ml"}', "predict:affine"),
            claims_entry("alice", '{sub = "alice"}', "metadata"),
        ]
    )


@pytest.fixture(scope="module")
def server(folder: Path, access_text: str) -> Iterator[RunningServer]:
    file = folder / "access.toml"
    file.write_text(access_text)
    flags = [f"--model_config_file={models_config(folder)}", f"--access_file={file}", "--sagemaker", "--console"]
    flags += ["--access_log=all", "--access_log_format=json"]
    port = free_port()
    env = {"SAGEMAKER_BIND_TO_PORT": str(port)}
    with serve(None, model="affine", log_dir=folder, flags=flags, env=env, wait=False, admin=False) as running:
        started = replace(running, rest_port=port)
        started.wait_until(lambda: started.get("/v2/health/ready")[0] == 200, 60, "ready")
        yield started


def models_config(folder: Path) -> Path:
    file = folder / "models.config"
    models = folder / "models"
    file.write_text(config_text(*(model_text(name, models / name) for name in ("affine", "other", "slow"))))
    return file


def test_every_method_of_grpc_asks_for_its_scope(server: RunningServer) -> None:
    with grpc.insecure_channel(server.grpc_address) as plain:
        token = bearer(key_of("metadata"))["authorization"]
        shown = grpc.intercept_channel(plain, _Metadata(("authorization", token)))
        known = ProtoReflectionDescriptorDatabase(shown)
        pool = DescriptorPool(known)
        there = {
            f"/{service}/{method.name}"
            for service in known.get_services()
            for method in pool.FindServiceByName(service).methods
        }
        # TensorFlow Serving's session service is in its file, and not served.
        assert there == set(GRPC)
        for path, scope in GRPC.items():
            code = call(plain, path, b"", {})
            assert (code == "UNAUTHENTICATED") == (scope is not None), (path, code)
            for other in SCOPES:
                code = call(plain, path, b"", bearer(key_of(other)))
                assert (code == "DENIED") == (scope not in (None, other)), (path, other, code)
                assert code != "UNAUTHENTICATED", (path, other)


class _Metadata(grpc.StreamStreamClientInterceptor):  # type: ignore[type-arg]  # the stubs say generic
    def __init__(self, *pairs: tuple[str, str]) -> None:
        self._pairs = pairs

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return continuation(details._replace(metadata=[*(details.metadata or ()), *self._pairs]), requests)


def test_every_route_of_rest_asks_for_its_scope(server: RunningServer) -> None:
    examples = [route.split(" ")[1] for route in REST]
    for _, path, *_ in ROUTES:
        pattern = re.sub(r"\{\w+\}", "[^/]+", path.replace("[", "(?:").replace("]", ")?"))
        assert any(re.fullmatch(pattern, example) for example in examples), path
    for route, scope in REST.items():
        status, text, headers = send(server, route)
        assert (status == 401) == (scope is not None), (route, status, text)
        assert (headers.get("www-authenticate", "") != "") == (status == 401), route
        for other in SCOPES:
            status, text, _ = send(server, route, headers=bearer(key_of(other)))
            assert (status == 403) == (scope not in (None, other)), (route, other, status, text)
            assert status != 401, (route, other)


BYPASSES = (
    *(
        "//v1/models/affine:predict",
        "/v1//models/affine:predict",
        "/V1/Models/affine:Predict",
        "/./v1/models/affine:predict",
    ),
    *("/healthz/../v1/models/affine:predict", "/v1/models/affine%3Apredict", "/%76%31/models/affine:predict"),
    *("/v1/models/affine:predict/", "/v1/models/affine:predict?a=/v2/health/live", "/v1/models/affine:predict#/x"),
    *(
        "/v1/models/affine:predict;/v2/health/live",
        "/v2/health/live/../../models/affine/infer",
        "\\v1\\models\\affine:predict",
    ),
    *("http://localhost/v1/models/affine:predict", "/v2/health/live%00/v1/models/affine:predict"),
)
MASKS = (
    *("X-Original-URL: /v2/health/live", "X-Rewrite-URL: /v2/health/live", "X-HTTP-Method-Override: GET"),
    *("X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1", "X-Real-IP: 127.0.0.1", "Authorization: Bearer"),
    *("Authorization: Basic Og==", "X-Api-Key: ", "Authorization: Bearer null", "Transfer-Encoding: identity"),
)


@pytest.mark.parametrize("path", ["/v1/models/affine:predict", *BYPASSES])
def test_no_other_spelling_of_a_path_needs_no_credentials(server: RunningServer, path: str) -> None:
    for method in ("POST", "post"):
        for mask in MASKS:
            head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{mask}\r\ncontent-length: {len(BODY)}\r\n"
            with socket.create_connection(("127.0.0.1", server.rest_port), timeout=30) as connection:
                connection.sendall(f"{head}connection: close\r\n\r\n".encode() + BODY)
                answer = b"".join(iter(lambda: connection.recv(65536), b""))
            assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501")), (method, path, mask, answer)
            assert b"predictions" not in answer


def test_patterns_of_models(server: RunningServer) -> None:
    shown = bearer(key_of("narrow"))
    infer = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}'
    for _ in range(2):
        # First Python answers, and then, as a rule, the core.
        assert send(server, "POST /v1/models/affine:predict", headers=shown)[0] == 200
        assert send(server, "POST /v1/models/other:predict", headers=shown)[0] == 403
        assert send(server, "POST /v2/models/affine/infer", headers=shown, body=infer)[0] == 200
        status, text, _ = send(server, "POST /v2/models/other/infer", headers=shown, body=infer)
        assert (status, json.loads(text)) == (403, {"error": "'narrow' has no scope 'predict' for model 'other'."})
        # An escaped name is the same name.
        assert send(server, "POST /v1/models/%6Fther:predict", headers=shown)[0] == 403
        assert send(server, "POST /v2/models/%6Fther/infer", headers=shown, body=infer)[0] == 403
        # The header has a meaning in other APIs, too.
        assert send(server, "POST /v1/models/affine:predict", headers={"X-Api-Key": key_of("narrow")})[0] == 200
    # What is about all models needs a pattern for all.
    assert send(server, "GET /v1/models", headers=shown)[0] == 403
    # What is neither configured nor allowed cannot be told apart.
    assert send(server, "GET /v1/models/nobody", headers=shown)[0] == 403
    with grpc.insecure_channel(server.grpc_address) as channel:
        for model, code in (("affine", "OK"), ("other", "DENIED"), ("", "DENIED")):
            for _ in range(2):
                request = inference_pb2.ModelInferRequest(model_name=model)
                item = request.inputs.add(name="x", datatype="FP32", shape=[1])
                item.contents.fp32_contents.append(1.0)
                path = INFERENCE_SERVICE["ModelInfer"].path
                assert call(channel, path, request.SerializeToString(), shown) == code, model
                tasks = serving_pb2.MultiInferenceRequest()
                tasks.tasks.add().model_spec.name = model
                path = PREDICTION_SERVICE["MultiInference"].path
                found = call(channel, path, tasks.SerializeToString(), shown)
                assert (found == "DENIED") == (code == "DENIED"), (model, found)


def test_a_pattern_tells_nothing_of_other_models(server: RunningServer) -> None:
    shown = bearer(key_of("narrow"))
    infer = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}'
    for path, body in (("v1/models/afford:predict", BODY), ("v2/models/afford/infer", infer)):
        status, text, _ = send(server, f"POST /{path}", headers=shown, body=body)
        assert (status, "afford" in text, "other" in text) == (404, True, False), text
    with grpc.insecure_channel(server.grpc_address) as channel, pytest.raises(grpc.RpcError) as caught:
        request = inference_pb2.ModelInferRequest(model_name="afford").SerializeToString()
        channel.unary_unary(INFERENCE_SERVICE["ModelInfer"].path, bytes, bytes)(request, metadata=tuple(shown.items()))
    assert caught.value.details() == "Servable not found for request: Latest(afford)"


@pytest.mark.parametrize("url", ["grpc://127.0.0.1:{grpc}", "http://127.0.0.1:{rest}", "grpc+v2://127.0.0.1:{grpc}"])
def test_our_clients_with_a_key(server: RunningServer, url: str) -> None:
    address = url.format(grpc=server.grpc_port, rest=server.rest_port)
    once = RetryOptions(attempts=1)
    for token, error in ((None, UnauthenticatedError), ("wrong", UnauthenticatedError)):
        with connect(address, ClientOptions(token=token, retry=once)) as client, pytest.raises(error):
            client.predict("affine", {"x": np.ones(1, np.float32)})
    with connect(address, ClientOptions(token=key_of("reader"), retry=once)) as client:
        for _ in range(3):
            assert client.predict("affine", {"x": np.ones(1, np.float32)})["y"].tolist() == [3.0]
    with connect(address, ClientOptions(token=key_of("metadata"), retry=once)) as client:
        with pytest.raises(PermissionDeniedError, match="no scope 'predict'"):
            client.predict("affine", {"x": np.ones(1, np.float32)})


def test_predictions_are_counted_and_logged_by_who_made_them(server: RunningServer) -> None:
    def counted() -> float:
        lines = send(server, "GET /metrics", headers=bearer(key_of("metrics")))[1].splitlines()
        wanted = (":modelyard:serving:client_requests{", 'client="reader"', 'model_name="affine"', 'status="OK"')
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(part in line for part in wanted))

    def logged() -> int:
        lines = [line for line in server.log_objects() if ":predict" in line.get("path", "")]
        return sum(line.get("principal") == "reader" for line in lines)

    counts, lines = counted(), logged()
    for _ in range(4):
        # First Python answers, and then the core.
        assert send(server, "POST /v1/models/affine:predict", headers=bearer(key_of("reader")))[0] == 200
    assert counted() == counts + 4
    server.wait_until(lambda: logged() >= lines + 4, 5, "the access log has them")


def test_the_command_line_takes_the_key_from_the_environment(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"x": 1.0}\n')
    command = ["predict", "affine", str(rows), "--server", f"grpc://{server.grpc_address}"]
    monkeypatch.delenv("MODELYARD_TOKEN", raising=False)
    assert main(command) == 1
    assert "needs credentials" in capsys.readouterr().err
    monkeypatch.setenv("MODELYARD_TOKEN", key_of("reader"))
    assert main(command) == 0
    assert "3.0" in capsys.readouterr().out


def test_load_tests_take_it_from_there_too(server: RunningServer) -> None:
    command = [
        str(Path(sys.executable).with_name("modelyard")), "loadtest", "run", "--model=affine", "--data=random",
        f"--host-grpc=grpc://{server.grpc_address}", f"--host-rest={server.rest_url}", "--rate=40", "--seconds=0.5",
        "--max-error-rate=0", "--min-requests=5", "--no-pin",
    ]  # fmt: skip
    env = {**os.environ, "MODELYARD_TOKEN": key_of("reader")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert key_of("reader") not in done.stdout + done.stderr


@pytest.mark.parametrize("body", [BODY, ODD_BODY])
def test_a_quota_of_requests(server: RunningServer, body: bytes) -> None:
    shown = bearer(key_of("requests"))

    def predict() -> tuple[int, str, Mapping[str, str]]:
        return send(server, "POST /v1/models/affine:predict", headers=shown, body=body)

    server.wait_until(lambda: predict()[0] == 200, 20, "let in")
    # So many at once, and one more for each half of a second that the machine takes over it.
    _, text, headers = next(answer for answer in (predict() for _ in range(100)) if answer[0] == 429)
    assert "The quota of 'requests' is used up: requests_per_second = 2. Try again in" in text
    assert headers["retry-after"] == "1"
    v2 = [send(server, "GET /v2/models/affine", headers=shown) for _ in range(3)]
    assert [(status, headers["retry-after"]) for status, _, headers in v2 if status == 429][:1] == [(429, "1")]
    with grpc.insecure_channel(server.grpc_address) as channel, pytest.raises(grpc.RpcError) as caught:
        method = channel.unary_unary(MODEL_SERVICE["GetModelStatus"].path, bytes, bytes)
        request = serving_pb2.GetModelStatusRequest()
        request.model_spec.name = "affine"
        for _ in range(6):
            method(request.SerializeToString(), metadata=tuple(shown.items()), timeout=20)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailers: dict[str, Any] = dict(caught.value.trailing_metadata())  # type: ignore[arg-type]  # they are pairs
    assert 0 < int(trailers["grpc-retry-pushback-ms"]) <= 500
    server.wait_until(lambda: predict()[0] == 200, 20, "let in again")


@pytest.mark.parametrize("index", range(3))
def test_a_quota_of_rows(server: RunningServer, index: int) -> None:
    rest = f"http://127.0.0.1:{server.rest_port}"
    url = (f"grpc://{server.grpc_address}", rest, rest.replace("http", "http+v2"))[index]
    with connect(url, ClientOptions(token=key_of(f"rows{index}"), retry=RetryOptions(attempts=1))) as client:
        # First Python answers, and then, as a rule, the core.
        for _ in range(2):
            # More than there are are answered, and those that come next wait for it.
            with pytest.raises(OverloadedError, match="rows_per_second = 100") as caught:
                for _ in range(100):
                    assert client.predict("affine", {"x": np.ones(150, np.float32)})["y"].shape == (150,)
            assert caught.value.retry_after_s is not None
            time.sleep(caught.value.retry_after_s)
            assert client.predict("affine", {"x": np.ones(1, np.float32)})["y"].shape == (1,)


def test_a_quota_of_requests_in_flight(server: RunningServer) -> None:
    shown = bearer(key_of("one"))
    for body, status in ((BODY, 200), (ODD_BODY, 200), (b"{", 400), (BODY, 200)) * 3:
        assert send(server, "POST /v1/models/affine:predict", headers=shown, body=body)[0] == status
    slow = "POST /v1/models/slow:predict"
    # First Python answers, and then, as a rule, the core.
    for _ in range(2):
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(send, server, slow, headers=shown)
            refused = []
            while not waiting.done():
                status, text, _ = send(server, "POST /v1/models/affine:predict", headers=shown)
                refused += [text] if status == 429 else []
            # Where a short one was first, it is the slow one that is refused.
            status, text, _ = waiting.result()
            assert status in (200, 429)
            assert any("max_in_flight = 1" in text for text in [*refused, text])
    # A caller that hangs up has nothing in flight, once the model has answered.
    head = f"POST /v1/models/slow:predict HTTP/1.1\r\nauthorization: {shown['authorization']}\r\n"
    with socket.create_connection(("127.0.0.1", server.rest_port), timeout=10) as connection:
        connection.sendall(f"{head}content-length: {len(BODY)}\r\n\r\n".encode() + BODY)
    server.wait_until(lambda: send(server, slow, headers=shown)[0] == 200, 20, "nothing is in flight")


def test_web_tokens(server: RunningServer, issuer: Issuer, folder: Path) -> None:
    def status(token: str, route: str = "POST /v1/models/affine:predict") -> tuple[int, str]:
        code, text, _ = send(server, route, headers=bearer(token))
        return code, "" if code == 200 else json.loads(text)["error"]

    good = issuer.token(groups=["ml", "web"])
    for _ in range(2):
        assert status(good) == (200, "")
    assert status(good, "POST /v1/models/other:predict")[0] == 403
    # A word of OAuth's scopes is one, too; and of two that fit, the first in the file decides.
    assert status(issuer.token(groups="web ml", sub="alice"))[0] == 200
    assert status(issuer.token(sub="alice"))[0] == 403
    assert status(issuer.token(sub="alice"), "GET /v1/models")[0] == 200
    stranger = Issuer(private=Ed25519PrivateKey.generate(), key_id="first")
    second = Issuer(private=Ed25519PrivateKey.generate(), key_id="second")
    head, payload, signature = good.split(".")
    public = json.dumps(issuer.jwk())
    refused = {
        issuer.token(groups="ml", exp=time.time() - 60): "has expired",
        issuer.token(groups="ml", iss="https://other"): "another issuer's",
        issuer.token(groups="ml", aud="other"): "another audience",
        issuer.token(groups="ml", nbf=time.time() + 600): "not valid yet",
        issuer.token(groups="nobody"): "no principal of --access_file fits it",
        stranger.token(groups="ml"): "its signature is wrong",
        second.token(groups="ml"): "not in the server's JWKS",
        f"{head}.{payload}.": "its signature is wrong",
        jwt.encode({"groups": "ml"}, "", algorithm="none", headers={"kid": "first"}): "its signature is wrong",
        jwt.encode({"groups": "ml"}, public * 2, algorithm="HS256", headers={"kid": "first"}): "its signature is wrong",
        f"{head}.{payload}": "The key is unknown",
        "a.b.c": "malformed",
    }
    for token, message in refused.items():
        code, text = status(token)
        assert (code, message in text) == (401, True), (message, text)
    # A new key is there as soon as the file has it, and the old one is gone.
    write_jwks(folder / "jwks.json", second)
    server.wait_until(lambda: status(second.token(groups="ml"))[0] == 200, 10, "the new key is known")
    assert status(good)[0] == 401
    (folder / "jwks.json").write_text("{")
    server.wait_until(lambda: "The keys of web tokens in" in server.log_text(), 10, "the bad file is in the log")
    assert status(second.token(groups="ml"))[0] == 200
    write_jwks(folder / "jwks.json", issuer)
    server.wait_until(lambda: status(good)[0] == 200, 10, "the first key is known again")


def test_keys_come_and_go_while_the_server_runs(server: RunningServer, folder: Path, access_text: str) -> None:
    file = folder / "access.toml"

    def status(name: str) -> int:
        return send(server, "POST /v1/models/affine:predict", headers=bearer(key_of(name)))[0]

    assert (status("reader"), status("new")) == (200, 401)
    file.write_text(access_text.replace(entry("reader", "predict", "metadata"), entry("new", "predict")))
    server.wait_until(lambda: status("new") == 200, 10, "the new key is known")
    assert status("reader") == 401
    for bad, message in (
        ("", "access.toml is empty"), ("[[principal", "cannot be read as TOML"),
        (entry("x", "everything"), "scope 'everything'"),
    ):  # fmt: skip
        file.write_text(bad)
        server.wait_until(lambda: message in server.log_text(), 10, f"{message} is in the log")  # noqa: B023
        assert (status("new"), status("reader")) == (200, 401)
    file.unlink()
    server.wait_until(lambda: "access.toml cannot be read" in server.log_text(), 10, "the log says that it is gone")
    assert status("new") == 200
    file.write_text(access_text)
    server.wait_until(lambda: status("reader") == 200, 10, "the old key is known again")
    assert status("new") == 401


def test_a_stream_that_is_open_ends_with_its_key(server: RunningServer, folder: Path, access_text: str) -> None:
    asked: SimpleQueue[bytes] = SimpleQueue()
    with grpc.insecure_channel(server.grpc_address) as channel:
        path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        shown = tuple(bearer(key_of("metadata")).items())
        answers = channel.stream_stream(path, bytes, bytes)(iter(asked.get, b""), metadata=shown, timeout=30)
        # Both ask for the list of services.
        asked.put(b":\0")
        assert b"inference.GRPCInferenceService" in next(iter(answers))
        (folder / "access.toml").write_text(access_text.replace(entry("metadata", "metadata"), ""))
        headers = bearer(key_of("metadata"))
        server.wait_until(lambda: send(server, "GET /v1/models", headers=headers)[0] == 401, 10, "the key is gone")
        asked.put(b":\0")
        with pytest.raises(grpc.RpcError) as caught:
            next(iter(answers))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        asked.put(b"")
    (folder / "access.toml").write_text(access_text)
    server.wait_until(lambda: send(server, "GET /v1/models", headers=headers)[0] == 200, 10, "it is known again")


def test_no_secret_is_in_the_log_or_in_an_answer(server: RunningServer, issuer: Issuer) -> None:
    wrong = "a-wrong-secret-that-nobody-may-see"
    token = issuer.token(groups="ml", exp=time.time() - 60)
    bearers = [wrong, token, f"{token}x", key_of("metrics"), key_of("reader")]
    values = [f"Basic {wrong}", wrong, *(f"Bearer {secret}" for secret in bearers)]
    answers = []
    with grpc.insecure_channel(server.grpc_address) as channel:
        for value in values:
            for headers in ({"authorization": value}, {"x-api-key": value.removeprefix("Bearer ")}):
                for route in ("POST /v1/models/affine:predict", "GET /v2/config", "POST /v2/models/affine/infer"):
                    for body in (BODY, b"{", b""):
                        status, text, fields = send(server, route, headers=headers, body=body)
                        answers += [text, str(fields)]
                call_text(channel, headers, answers)
    said = server.log_text() + "\n".join(answers)
    for secret in (wrong, token, key_of("metrics"), key_of("reader"), key_of("reader").removeprefix("myd_")):
        assert secret not in said


def call_text(channel: grpc.Channel, headers: Mapping[str, str], answers: list[str]) -> None:
    try:
        channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)(
            b"\xff", metadata=tuple(headers.items()), timeout=20
        )
    except grpc.RpcError as exc:
        answers += [exc.details() or "", str(exc.trailing_metadata())]


def test_where_files_are_is_said_to_who_may_administer(server: RunningServer, folder: Path) -> None:
    for principal, expected in (("reader", []), ("keeper", ["affine"])):
        shown = bearer(key_of(principal))
        models = json.loads(send(server, "GET /v1/models", headers=shown)[1])["models"]
        assert [model["name"] for model in models] == ["affine", "other", "slow"]
        assert [model["name"] for model in models if "base_path" in model] == expected
        for page in ("/console", "/console/models/affine", "/console/models/other"):
            status, text, _ = send(server, f"GET {page}", headers=shown)
            assert status == 200
            found = [model["name"] for model in models if str(folder / "models" / model["name"]) in text]
            assert found == ([] if page.endswith("other") else expected), page


def reload_by(address: str, text: str) -> tuple[str, str]:
    request = serving_pb2.ReloadConfigRequest()
    text_format.Parse(text, request.config)
    with grpc.insecure_channel(address) as channel:
        method = channel.unary_unary(MODEL_SERVICE["HandleReloadConfigRequest"].path, bytes, bytes)
        try:
            method(request.SerializeToString(), timeout=60)
        except grpc.RpcError as exc:
            return exc.code().name, exc.details() or ""
    return "OK", ""


@pytest.mark.parametrize("insecure", [False, True])
def test_nobody_administers_without_credentials(folder: Path, tmp_path: Path, insecure: bool) -> None:
    """Behind a proxy in the same pod every caller is 127.0.0.1."""
    path = tmp_path / "grpc.sock"
    flags = [
        f"--grpc_socket_path={path}", f"--model_repository={folder / 'models'}", "--model_control_mode=explicit",
        *(["--insecure_admin=loopback"] if insecure else []),
    ]  # fmt: skip
    with serve(None, model="affine", log_dir=tmp_path, flags=flags, wait=False, admin=False) as server:
        server.wait_until(lambda: send(server, "GET /v2/health/live")[0] == 200, 60, "live")
        text = "Administration from 127.0.0.1 is refused: it needs credentials with the scope 'admin'."
        for route in ("POST /v2/repository/models/affine/load", "GET /v2/config"):
            status, body, _ = send(server, route, body=b"{}")
            assert (status, text in body) == ((200, False) if insecure else (403, True)), route
        reload_text = config_text(model_text("affine", folder / "models" / "affine"))
        for address, host in ((server.grpc_address, "127.0.0.1"), (f"unix:{path}", "unix:")):
            code, message = reload_by(address, reload_text)
            assert (code == "PERMISSION_DENIED") == (not insecure), (address, code, message)
            assert (f"from {host} is refused" in message) == (not insecure)
            with grpc.insecure_channel(address) as channel:
                request = inference_pb2.RepositoryModelLoadRequest(model_name="affine").SerializeToString()
                code = call(channel, "/inference.GRPCInferenceService/RepositoryModelLoad", request, {})
                assert code == ("OK" if insecure else "DENIED"), address
        # Pages of the web have the browser on this machine call.
        page = {"origin": "https://example.com"}
        assert send(server, "POST /v2/repository/models/affine/load", headers=page, body=b"{}")[0] == 403
        # A page whose name leads to this machine reads from its own site, as the browser sees it.
        for host in ("evil.example", f"evil.example:{server.rest_port}", "localhost.evil.example", "["):
            status, body, _ = send(server, "GET /v2/config", headers={"host": host})
            assert (status, "from a caller that may be elsewhere is refused" in body) == (403, True), host
        for host in ("localhost", f"LOCALHOST:{server.rest_port}", "[::1]:8501", "10.0.0.1"):
            assert send(server, "GET /v2/config", headers={"host": host})[0] == (200 if insecure else 403), host
        # Everything else is open, as in TensorFlow Serving.
        assert send(server, "GET /metrics")[0] == 200
        (model,) = [
            each for each in json.loads(send(server, "GET /v1/models")[1])["models"] if each["name"] == "affine"
        ]
        # But for where files are: that is for who may administer.
        assert model.get("base_path") == (str(folder / "models" / "affine") if insecure else None)
        predicted = send(server, "POST /v1/models/affine:predict", headers=bearer("whatever"))[0]
        assert predicted == (200 if insecure else 404)


def test_a_file_that_cannot_be_used_ends_the_start(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(entry("x", "predict") + 'keys2 = ["a"]\n')
    flags = [f"--access_file={file}", f"--rest_api_port={free_port()}"]
    with serve(folder / "models" / "affine", model="affine", log_dir=tmp_path, flags=flags, wait=False) as server:
        assert server.process.wait(timeout=60) == 1
        assert re.search(r"--access_file=.*access\.toml: principal 'x' has 'keys2'; expected some", server.log_text())
