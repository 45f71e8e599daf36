"""Traffic rules: splits, headers, sticky keys, shadows and rollbacks, as callers and operators see them."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2, prediction_service_pb2_grpc

from modelyard.cli import main
from modelyard.wire import inference_pb2
from tests.support.metrics import monitoring_flag, scrape, value
from tests.support.models import publish_affine, publish_names, publish_pairs, publish_slow
from tests.support.rollout import row, rows
from tests.support.server import RunningServer, serve
from tests.support.waiting import until_settled

WAIT_S = 60
BODY = b'{"instances": [1.0]}'
#: ``split`` answers with the number of its version, as do all others where they answer at all.
RULES = {
    "split": "split { version: 1 weight: 70 } split { version: 2 weight: 30 } split { version: 3 } "
    'version_header: "X-Model-Version" sticky_header: "x-user-id"',
    "agents": 'split { version: 1 weight: 1 } split { version: 2 weight: 1 } sticky_header: "user-agent"',
    "shadowed": "split { version: 1 } shadow { version: 2 share: 1 tolerance: 0.5 }",
    "same": "split { version: 1 } shadow { version: 2 share: 0.5 }",
    "failing": 'split { label: "stable" weight: 1 } split { label: "canary" weight: 1 } version_header: "x-version" '
    "rollback { max_error_rate: 0.1 min_samples: 10 }",
    "beside": "split { version: 1 weight: 1 } split { version: 2 weight: 1 } split { version: 3 weight: 1 } "
    'sticky_header: "x-user-id" rollback { max_error_rate: 0.1 min_samples: 10 }',
    "uneven": "split { version: 1 weight: 1 } split { version: 2 weight: 1 }",
    "slow": "split { version: 1 weight: 1 } split { version: 2 weight: 1 } rollback { max_p99_ms: 5 min_samples: 5 }",
    "differing": "split { version: 1 weight: 3 } split { version: 2 weight: 1 } shadow { version: 2 share: 1 } "
    "rollback { max_disagreement: 0.2 min_samples: 30 }",
    "names": "split { version: 1 } shadow { version: 2 share: 1 }",
    "overflowing": "split { version: 1 } shadow { version: 2 share: 1 }",
    "copied": "split { version: 1 } shadow { version: 2 share: 1 } rollback { max_disagreement: 0.2 min_samples: 5 }",
}


def traffic_text(rules: Mapping[str, str]) -> str:
    return "\n".join(f'model {{ name: "{name}" {rule} }}' for name, rule in rules.items())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rollout")
    models = folder / "models"
    for number in (1, 2, 3):
        publish_affine(models / "split", slope=float(number), intercept=0.0)
    # Slow ones take several times their limit even where a core multiplies 100 billion numbers a second.
    for name, loops in (("shadowed", 40), ("slow", 100)):
        publish_affine(models / name, slope=1.0, intercept=0.0)
        publish_slow(models / name, loops=loops)
    publish_names(models / "names", ["ankle boot", "bag", "coat"])
    publish_names(models / "names", ["ankle boot", "sac", "coat"])
    for _ in range(2):
        publish_affine(models / "same", slope=1.0, intercept=0.0)
    for name in ("failing", "uneven", "beside"):
        publish_affine(models / name, slope=1.0, intercept=0.0)
        # Its inputs have other names.
        publish_pairs(models / name)
    publish_affine(models / "beside", slope=3.0, intercept=0.0)
    assert main(["repo", "label", str(models / "failing"), "stable", "1"]) == 0
    assert main(["repo", "label", str(models / "failing"), "canary", "2"]) == 0
    publish_affine(models / "overflowing", slope=1.0, intercept=0.0)
    publish_affine(models / "overflowing", slope=3e38, intercept=0.0)
    for name in ("agents", "differing", "copied"):
        for number in (1, 2):
            publish_affine(models / name, slope=float(number), intercept=0.0)
    (folder / "traffic.config").write_text(traffic_text(RULES))
    return folder


def flags_of(folder: Path) -> tuple[str, ...]:
    return (
        f"--version_traffic_file={folder / 'traffic.config'}",
        f"--version_traffic_state_file={folder / 'rolled_back.json'}",
        monitoring_flag(folder),
    )


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    flags = (f"--model_repository={folder / 'models'}", f"--grpc_socket_path={folder / 'socket'}", *flags_of(folder))
    with serve(None, model="split", log_dir=folder, flags=flags, wait=False) as running:
        ready = "/v2/health/ready"
        running.wait_until(lambda: running.get(ready)[0] == 200, WAIT_S, "ready")
        running.wait_until(
            lambda: all(row["version"] is not None for row in rows(running)), WAIT_S, "all targets loaded"
        )
        yield running


@pytest.fixture(scope="module")
def stub(server: RunningServer) -> Iterator[prediction_service_pb2_grpc.PredictionServiceStub]:
    with grpc.insecure_channel(server.grpc_address) as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def by_grpc(
    stub: prediction_service_pb2_grpc.PredictionServiceStub,
    model: str,
    headers: Mapping[str, str] | None = None,
    *,
    version: int = 0,
) -> int:
    """The version that answers, by what it says and by what it computes."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    if version:
        request.model_spec.version.value = version
    request.inputs["x"].dtype = 1
    request.inputs["x"].tensor_shape.dim.add(size=1)
    request.inputs["x"].float_val.append(1.0)
    answer = stub.Predict(request, timeout=60, metadata=tuple((headers or {}).items()))
    return int(answer.model_spec.version.value)


def by_rest(server: RunningServer, model: str, headers: Mapping[str, str] | None = None, *, where: str = "") -> int:
    status, text = server.post(f"/v1/models/{model}{where}:predict", BODY, headers)
    assert status == 200, text
    return int(json.loads(text)["predictions"][0])


def by_oip(server: RunningServer, model: str, headers: Mapping[str, str]) -> int:
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]}
    status, text = server.post(f"/v2/models/{model}/infer", json.dumps(body).encode(), headers)
    assert status == 200, text
    return int(json.loads(text)["model_version"])


def by_oip_grpc(server: RunningServer, model: str, headers: Mapping[str, str]) -> int:
    tensor = tritonclient.grpc.InferInput("x", [1], "FP32")
    tensor.set_data_from_numpy(np.ones(1, np.float32))
    with tritonclient.grpc.InferenceServerClient(server.grpc_address) as client:
        return int(client.infer(model, [tensor], headers=dict(headers)).get_response().model_version)


def test_weights(server: RunningServer, stub: prediction_service_pb2_grpc.PredictionServiceStub) -> None:
    def counted() -> dict[str, float]:
        series = scrape(server)
        return {
            target: value(series, ":modelyard:serving:traffic_requests", model="split", target=target, status="OK")
            for target in ("1", "2")
        }

    before = counted()
    found = Counter(by_grpc(stub, "split") for _ in range(300))
    found += Counter(by_rest(server, "split") for _ in range(100))
    # 30 % of 400 are 120, give or take 9: five times that is seen once in a million runs.
    assert set(found) == {1, 2}
    assert 74 <= found[2] <= 166
    # Though the policy is the newest alone, all that the rule names are loaded.
    assert '"AVAILABLE"' in server.get("/v1/models/split/versions/1")[1]
    assert {target: number - before[target] for target, number in counted().items()} == {"1": found[1], "2": found[2]}
    share = value(scrape(server), ":modelyard:serving:traffic_share", model="split", target="2")
    assert share == pytest.approx(0.3)
    assert row(server, "split", "2")["requests"] >= found[2]


def test_sticky_keys(server: RunningServer, stub: prediction_service_pb2_grpc.PredictionServiceStub) -> None:
    expected = {}
    for user in (f"user-{number}" for number in range(40)):
        digest = hashlib.sha256(b"split\0" + user.encode()).digest()
        expected[user] = 2 if int.from_bytes(digest[:8], "big") / (1 << 64) < 0.3 else 1
    assert 3 <= list(expected.values()).count(2) <= 25
    for user, version in expected.items():
        headers = {"x-user-id": user}
        assert (by_grpc(stub, "split", headers), by_rest(server, "split", headers)) == (version, version)
    for user, version in list(expected.items())[:8]:
        headers = {"x-user-id": user}
        assert (by_oip(server, "split", headers), by_oip_grpc(server, "split", headers)) == (version, version)


def test_a_rollback_moves_no_other_targets_users(
    server: RunningServer, stub: prediction_service_pb2_grpc.PredictionServiceStub
) -> None:
    users: dict[int, list[str]] = {1: [], 2: [], 3: []}
    for user in (f"user-{number}" for number in range(40)):
        place = int.from_bytes(hashlib.sha256(b"beside\0" + user.encode()).digest()[:8], "big") / (1 << 64)
        users[2 if place < 1 / 3 else 3 if place < 2 / 3 else 1].append(user)
    assert min(map(len, users.values())) >= 5
    for user in (users[2] * 4)[:20]:
        assert server.post("/v1/models/beside:predict", BODY, {"x-user-id": user})[0] == 400
    server.wait_until(lambda: row(server, "beside", "2")["state"] == "rolled back", WAIT_S, "rolled back")
    for target, version in ((1, 1), (2, 1), (3, 3)):
        for headers in ({"x-user-id": user} for user in users[target][:5]):
            assert (by_grpc(stub, "beside", headers), by_rest(server, "beside", headers)) == (version, version)
            assert by_oip(server, "beside", headers) == version
    assert [row(server, "beside", target)["share"] for target in "123"] == pytest.approx([2 / 3, 0.0, 1 / 3])


def test_a_header_names_the_version(
    server: RunningServer, stub: prediction_service_pb2_grpc.PredictionServiceStub
) -> None:
    for name in ("1", "2", "3"):
        headers = {"x-model-version": name}
        assert {by_rest(server, "split", headers) for _ in range(3)} == {int(name)}
        assert {by_grpc(stub, "split", headers) for _ in range(3)} == {int(name)}
        assert by_oip(server, "split", headers) == int(name)
    text = "x-model-version: '9' is no version of model 'split' that the header may name; expected one of 1, 2, 3."
    status, answer = server.post("/v1/models/split:predict", BODY, {"x-model-version": "9"})
    assert (status, json.loads(answer)["error"]) == (400, text)
    with pytest.raises(grpc.RpcError) as caught:
        by_grpc(stub, "split", {"x-model-version": "9"})
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, text)


def test_who_names_a_version_gets_it(
    server: RunningServer, stub: prediction_service_pb2_grpc.PredictionServiceStub
) -> None:
    headers = {"x-model-version": "1", "x-user-id": "somebody"}
    assert {by_grpc(stub, "split", headers, version=3) for _ in range(5)} == {3}
    assert {by_rest(server, "split", headers, where="/versions/2") for _ in range(5)} == {2}
    assert {by_rest(server, "failing", where="/labels/stable") for _ in range(5)} == {1}


def test_what_is_no_prediction_gets_the_stable_version(
    stub: prediction_service_pb2_grpc.PredictionServiceStub,
) -> None:
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "split"
    assert stub.GetModelMetadata(request, timeout=60).model_spec.version.value == 1


def test_a_version_that_the_core_cannot_answer_gets_its_share(
    server: RunningServer, stub: prediction_service_pb2_grpc.PredictionServiceStub
) -> None:
    failed = 0
    for _ in range(200):
        try:
            assert by_grpc(stub, "uneven") == 1
        except grpc.RpcError as exc:
            assert exc.code() is grpc.StatusCode.INVALID_ARGUMENT
            failed += 1
    # 100, give or take 7; drawn twice, they would be 50.
    assert 72 <= failed <= 128


def by_stream(channel: grpc.Channel, model: str, headers: Mapping[str, str] | None = None) -> set[int]:
    """The versions that answer 60 messages of one stream."""
    request = inference_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(1.0)
    infer = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer", bytes, bytes)
    messages = iter([request.SerializeToString()] * 60)
    answers = list(infer(messages, timeout=60, metadata=tuple((headers or {}).items())))
    return {
        int(inference_pb2.ModelStreamInferResponse.FromString(each).infer_response.model_version) for each in answers
    }


@pytest.mark.parametrize("endpoint", ["port", "socket"])
def test_no_caller_draws(server: RunningServer, folder: Path, endpoint: str) -> None:
    """Each message of a stream is drawn, too."""
    # As the core says that it has drawn version 2.
    drawn = {"x-modelyard-ticket": "0.0"}
    address = server.grpc_address if endpoint == "port" else f"unix:{folder / 'socket'}"
    with grpc.insecure_channel(address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        assert {by_grpc(stub, "split", drawn) for _ in range(60)} == {1, 2}
        assert by_stream(channel, "split", drawn) == {1, 2}


def test_a_user_agent_is_a_sticky_key(server: RunningServer) -> None:
    """As the core and Python see it."""
    found = set()
    for number in range(12):
        options = [("grpc.primary_user_agent", f"agent-{number}")]
        with grpc.insecure_channel(server.grpc_address, options) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            version = by_grpc(stub, "agents")
            assert by_stream(channel, "agents") == {version}
            found.add(version)
    assert found == {1, 2}


def test_a_slow_shadow_touches_no_answer(
    server: RunningServer, stub: prediction_service_pb2_grpc.PredictionServiceStub
) -> None:
    def seconds(version: int = 0) -> float:
        begun = time.perf_counter()
        assert by_grpc(stub, "shadowed", version=version) == (version or 1)
        return time.perf_counter() - begun

    slow = min(seconds(2) for _ in range(3))
    seconds()
    # Others use the machine as well: the best of three rounds.
    assert min(statistics.median(seconds() for _ in range(50)) for _ in range(3)) < slow / 3
    server.wait_until(lambda: row(server, "shadowed", "2")["shadow_rows"] > 50, WAIT_S, "comparing what waited")
    found = row(server, "shadowed", "2")
    # Both compute y = x.
    assert (found["role"], found["share"], found["disagreed"], found["requests"]) == ("shadow", 0.0, 0, 0)
    series = scrape(server)
    compared, dropped = (
        value(series, ":modelyard:serving:shadow_requests", model="shadowed", target="2", result=result)
        for result in ("compared", "dropped")
    )
    assert compared > 50
    # While 64 waited.
    assert dropped > 0


def test_a_shadow_gets_its_share(
    server: RunningServer, stub: prediction_service_pb2_grpc.PredictionServiceStub
) -> None:
    assert {by_grpc(stub, "same") for _ in range(100)} == {1}
    assert {by_rest(server, "same") for _ in range(20)} == {1}
    server.wait_until(lambda: row(server, "same", "2")["shadow_rows"] >= 33, WAIT_S, "comparing half of them")
    until_settled(lambda: row(server, "same", "2")["shadow_rows"])
    found = row(server, "same", "2")
    # Half of 120, give or take 5.5.
    assert 33 <= found["shadow_rows"] <= 87
    assert (found["disagreed"], found["max_error"]) == (0, 0.0)


def test_each_request_is_compared_by_its_own_rows(
    stub: prediction_service_pb2_grpc.PredictionServiceStub, server: RunningServer
) -> None:
    """Those that shared a batch, too: of strings and of numbers."""

    def ask(ids: list[int]) -> list[bytes]:
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "names"
        request.inputs["id"].dtype = 9
        request.inputs["id"].tensor_shape.dim.add(size=len(ids))
        request.inputs["id"].int64_val.extend(ids)
        return list(stub.Predict(request, timeout=60).outputs["name"].string_val)

    asked = [[(number * step) % 3 for step in range(1 + number % 4)] for number in range(60)]
    ask([0])
    with ThreadPoolExecutor(8) as threads:
        names = (b"ankle boot", b"bag", b"coat")
        assert list(threads.map(ask, asked)) == [[names[each] for each in ids] for ids in asked]
    rows_asked = 1 + sum(map(len, asked))
    server.wait_until(lambda: row(server, "names", "2")["shadow_rows"] == rows_asked, WAIT_S, "comparing all rows")
    found = row(server, "names", "2")
    # Only the bag has another name, of the same length.
    assert (found["disagreed"], found["max_error"]) == (sum(ids.count(1) for ids in asked), 0.0)


def test_an_infinite_error_is_shown(server: RunningServer) -> None:
    def refuse(name: str) -> None:
        pytest.fail(f"{name} is no JSON")

    assert server.post("/v1/models/overflowing:predict", b'{"instances": [2.0]}')[0] == 200
    server.wait_until(lambda: row(server, "overflowing", "2")["shadow_rows"] == 1, WAIT_S, "comparing")
    found = row(server, "overflowing", "2")
    assert (found["disagreed"], found["max_error"]) == (1, None)
    json.loads(server.get("/v2/traffic")[1], parse_constant=refuse)
    error = value(scrape(server), ":modelyard:serving:shadow_max_error", model="overflowing", target="2")
    assert error == float("inf")


def test_a_canary_that_fails_is_rolled_back(
    server: RunningServer, stub: prediction_service_pb2_grpc.PredictionServiceStub, folder: Path
) -> None:
    def outcome(headers: Mapping[str, str] | None = None) -> str:
        try:
            return str(by_grpc(stub, "failing", headers))
        except grpc.RpcError as exc:
            return str(exc.code())

    before = Counter(outcome() for _ in range(40))
    # Nobody is asked again elsewhere: errors of a canary are seen by its callers.
    assert set(before) == {"1", "StatusCode.INVALID_ARGUMENT"}
    server.wait_until(lambda: row(server, "failing", "canary")["state"] == "rolled back", WAIT_S, "rolled back")
    found = row(server, "failing", "canary")
    assert (found["version"], found["share"], found["weight"], found["role"]) == (2, 0.0, 0.5, "canary")
    assert "requests failed" in found["reason"] and "more than max_error_rate: 0.1 beyond" in found["reason"]
    (line,) = [line for line in server.log_text().splitlines() if "failing: canary" in line]
    assert " W " in line and f"canary (version 2) is rolled back: {found['reason']}; stable answers instead" in line
    assert {outcome() for _ in range(20)} == {"1"}
    # Whoever is sent to it by a header must not fail, either.
    assert outcome({"x-version": "canary"}) == "1"
    series = scrape(server)
    assert value(series, ":modelyard:serving:traffic_share", model="failing", target="stable") == 1.0
    assert (
        value(series, ":modelyard:serving:traffic_rollbacks", model="failing", target="canary", limit="max_error_rate")
        == 1.0
    )

    # A restart begins where this run is.
    flags = flags_of(folder)
    with serve(folder / "models" / "failing", model="failing", log_dir=folder, flags=flags) as again:
        again.wait_until(lambda: row(again, "failing", "canary")["version"] == 2, WAIT_S, "canary loaded")
        assert f"canary stays rolled back: {found['reason']}" in again.log_text()
        assert {by_rest(again, "failing") for _ in range(20)} == {1}

    # The label is given to a better version: that begins anew.
    publish_affine(folder / "models" / "failing", slope=3.0, intercept=0.0)
    assert main(["repo", "label", str(folder / "models" / "failing"), "canary", "3"]) == 0
    server.wait_until(lambda: row(server, "failing", "canary")["state"] == "serving", WAIT_S, "serving again")
    server.wait_until(lambda: {outcome() for _ in range(20)} == {"1", "3"}, WAIT_S, "both answering")
    assert "failing: canary is version 3 now: it is not rolled back any more" in server.log_text()


def test_a_slow_canary_is_rolled_back(
    server: RunningServer, stub: prediction_service_pb2_grpc.PredictionServiceStub
) -> None:
    assert set(Counter(by_grpc(stub, "slow") for _ in range(40))) == {1, 2}
    server.wait_until(lambda: row(server, "slow", "2")["state"] == "rolled back", WAIT_S, "rolled back")
    assert "more than max_p99_ms: 5, in the last 60 s" in row(server, "slow", "2")["reason"]
    assert {by_grpc(stub, "slow") for _ in range(20)} == {1}


def test_a_canary_that_answers_otherwise_is_rolled_back(
    server: RunningServer, stub: prediction_service_pb2_grpc.PredictionServiceStub
) -> None:
    # It is not judged before 30 were compared: among as many it answers one, but for once in 5,000 runs.
    before = row(server, "differing", "2")["shadow_rows"]
    answered = Counter(by_grpc(stub, "differing") for _ in range(120))
    assert set(answered) == {1, 2}
    server.wait_until(lambda: row(server, "differing", "2")["state"] == "rolled back", WAIT_S, "rolled back")
    found = row(server, "differing", "2")
    assert "rows were answered otherwise, or not at all, as a shadow" in found["reason"]
    assert found["max_error"] == 1.0
    # Only what the other version answered was compared.
    assert found["disagreed"] == found["shadow_rows"] <= before + answered[1]
    assert {by_grpc(stub, "differing") for _ in range(20)} == {1}
    # It is no shadow any more.
    assert row(server, "differing", "2")["shadow_rows"] == found["shadow_rows"]


def test_a_shadow_that_answers_otherwise_is_rolled_back(server: RunningServer) -> None:
    assert {by_rest(server, "copied") for _ in range(20)} == {1}
    server.wait_until(lambda: row(server, "copied", "2")["state"] == "rolled back", WAIT_S, "rolled back")
    assert row(server, "copied", "2")["role"] == "shadow"
    (line,) = [line for line in server.log_text().splitlines() if "copied: 2 is rolled back" in line]
    assert "; it computes nothing until the rule in" in line


def test_the_file_is_looked_at_again(
    server: RunningServer, stub: prediction_service_pb2_grpc.PredictionServiceStub, folder: Path
) -> None:
    file = folder / "traffic.config"

    def write(rules: Mapping[str, str]) -> None:
        (folder / "new").write_text(traffic_text(rules))
        (folder / "new").replace(file)

    try:
        file.write_text('model { name: "split" splitt {} }')
        server.wait_until(lambda: "traffic rules stay as they were" in server.log_text(), WAIT_S, "refusing the file")
        assert "splitt" in server.log_text()
        assert set(Counter(by_grpc(stub, "split") for _ in range(60))) == {1, 2}

        write({**RULES, "split": "split { version: 2 weight: 1 } split { version: 3 weight: 1 }"})
        server.wait_until(lambda: {by_grpc(stub, "split") for _ in range(40)} == {2, 3}, WAIT_S, "following the file")

        # What cannot answer yet takes nothing from what does.
        write({**RULES, "split": "split { version: 4 }"})
        waits = "model split: its traffic rule begins when 4 can answer"
        server.wait_until(lambda: waits in server.log_text(), WAIT_S, "waiting for version 4")
        assert {by_grpc(stub, "split") for _ in range(40)} == {2, 3}
        assert row(server, "split", "4")["state"] == "waiting"
        publish_affine(folder / "models" / "split", slope=4.0, intercept=0.0)
        server.wait_until(lambda: {by_grpc(stub, "split") for _ in range(10)} == {4}, WAIT_S, "version 4")

        # A model without a rule answers with its newest version.
        write({name: rule for name, rule in RULES.items() if name != "differing"})
        server.wait_until(lambda: {by_grpc(stub, "differing") for _ in range(20)} == {2}, WAIT_S, "the newest version")
    finally:
        write(RULES)
    # Another rule begins anew, when the versions that it names are there again.
    server.wait_until(
        lambda: [each["state"] for each in rows(server) if each["model"] == "differing"] == ["serving"] * 2,
        WAIT_S,
        "serving by the first rules",
    )
    server.wait_until(lambda: {by_grpc(stub, "split") for _ in range(40)} == {1, 2}, WAIT_S, "loaded again")
    server.wait_until(lambda: all(row["version"] is not None for row in rows(server)), WAIT_S, "all targets loaded")
