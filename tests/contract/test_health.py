"""Health checks that tell the truth, and server reflection, through the official stubs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.support.admin import config_text, model_text, reload_config
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve

SERVICES = (
    "",
    "inference.GRPCInferenceService",
    "ModelService",
    "PredictionService",
    "tensorflow.serving.ModelService",
    "tensorflow.serving.PredictionService",
)
SERVING = "SERVING"
NOT_SERVING = "NOT_SERVING"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("health")
    publish_affine(folder / "affine", slope=1.0, intercept=0.0)
    with serve(folder / "affine", model="affine", log_dir=folder) as running:
        yield running


def check(server: RunningServer, service: str) -> str:
    with grpc.insecure_channel(server.grpc_address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            response = health_pb2_grpc.HealthStub(channel).Check(request, timeout=30, wait_for_ready=True)
        except grpc.RpcError as exc:
            return str(exc.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def test_services_and_models_are_healthy(server: RunningServer) -> None:
    for service in (*SERVICES, "affine"):
        server.wait_until(lambda name=service: check(server, name) == SERVING, 30, f"{service!r} SERVING")


def test_unknown_services(server: RunningServer) -> None:
    assert check(server, "nobody") == "NOT_FOUND"
    with grpc.insecure_channel(server.grpc_address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="nobody"), timeout=30)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()


def test_nothing_is_healthy_before_the_models_are_loaded(tmp_path: Path) -> None:
    model_dir = tmp_path / "affine"
    with serve(model_dir, model="affine", log_dir=tmp_path, wait=False) as server:
        # The first answer that there is: there must be no moment at which it says otherwise.
        assert check(server, "") == NOT_SERVING
        for service in (*SERVICES, "affine"):
            assert check(server, service) == NOT_SERVING
        publish_affine(model_dir, slope=1.0, intercept=0.0)
        for service in (*SERVICES, "affine"):
            server.wait_until(lambda name=service: check(server, name) == SERVING, 30, f"{service!r} SERVING")
        (model_dir / "1").rename(tmp_path / "away")
        server.wait_until(lambda: check(server, "affine") == NOT_SERVING, 30, "model gone")
        assert check(server, "") == NOT_SERVING


def test_health_follows_the_configuration(server: RunningServer, tmp_path: Path) -> None:
    affine = model_text("affine", server.log.parent / "affine")
    late = model_text("late", tmp_path / "late")
    assert reload_config(server, config_text(affine, late))[0] == "UNKNOWN"
    server.wait_until(lambda: check(server, "late") == NOT_SERVING, 30, "late NOT_SERVING")
    # Each model has a health of its own; what has never answered takes nothing from the server as a whole.
    assert (check(server, "affine"), check(server, "")) == (SERVING, SERVING)
    publish_affine(tmp_path / "late", slope=1.0, intercept=0.0)
    server.wait_until(lambda: check(server, "late") == SERVING, 30, "late SERVING")
    assert reload_config(server, config_text(affine)) == ("OK", "")
    server.wait_until(lambda: check(server, "late") == "NOT_FOUND", 30, "late forgotten")
    assert check(server, "") == SERVING


def test_a_status_is_503_until_a_model_of_the_start_can_answer(tmp_path: Path) -> None:
    """As probes of Kubernetes and health checks of containers ask for it, which see no more than the status code."""
    for name in ("affine", "late"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.onnx").write_bytes(b"no graph")
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, wait=False) as server:
        server.wait_until(lambda: '"END"' in server.get("/v1/models/affine")[1], 60, "giving up version 1")
        assert {server.get(f"/v1/models/affine{path}")[0] for path in ("", "/versions/1", "/labels/x")} == {503}
        publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
        server.wait_available()
        assert server.get("/v1/models/affine")[0] == 200
        # As upstream, which answers while it loads what it was not started with.
        models = [model_text(name, tmp_path / name) for name in ("affine", "late")]
        assert reload_config(server, config_text(*models))[0] == "UNKNOWN"
        status, text = server.get("/v1/models/late")
        assert (status, '"END"' in text) == (200, True)


def test_a_watcher_that_leaves_takes_nothing_from_the_others(tmp_path: Path) -> None:
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, wait=False) as server:
        request = health_pb2.HealthCheckRequest()
        with grpc.insecure_channel(server.grpc_address) as stays, grpc.insecure_channel(server.grpc_address) as leaves:
            watch = health_pb2_grpc.HealthStub(stays).Watch(request, timeout=60, wait_for_ready=True)
            other = health_pb2_grpc.HealthStub(leaves).Watch(request, timeout=60, wait_for_ready=True)
            assert next(watch).status == next(other).status == health_pb2.HealthCheckResponse.NOT_SERVING
            other.cancel()
            leaves.close()
            publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            watch.cancel()


def test_both_may_be_turned_off(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    flags = ["--enable_grpc_healthcheck_service=false", "--enable_grpc_reflection=false"]
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags) as server:
        assert check(server, "") == "UNIMPLEMENTED"
        with pytest.raises(grpc.RpcError) as caught:
            reflect(server, reflection_pb2.ServerReflectionRequest(list_services=""))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def reflect(
    server: RunningServer, request: reflection_pb2.ServerReflectionRequest
) -> reflection_pb2.ServerReflectionResponse:
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        return next(stub.ServerReflectionInfo(iter([request]), timeout=30))


def test_reflection_lists_the_services(server: RunningServer) -> None:
    response = reflect(server, reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in response.list_services_response.service}
    assert names >= {
        "tensorflow.serving.PredictionService",
        "tensorflow.serving.ModelService",
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    for name in names:
        assert services_of(server, name), name


def services_of(server: RunningServer, symbol: str) -> dict[str, set[str]]:
    """The services, with their methods, of the files that resolve a symbol."""
    response = reflect(server, reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
    found = {}
    for data in response.file_descriptor_response.file_descriptor_proto:
        file = descriptor_pb2.FileDescriptorProto.FromString(data)
        for service in file.service:
            found[f"{file.package}.{service.name}"] = {method.name for method in service.method}
    return found


def test_reflection_resolves_the_methods_and_messages(server: RunningServer) -> None:
    found = services_of(server, "tensorflow.serving.PredictionService")
    assert found["tensorflow.serving.PredictionService"] == {
        "Predict", "Classify", "Regress", "MultiInference", "GetModelMetadata",
    }  # fmt: skip
    for symbol in ("tensorflow.serving.PredictRequest", "tensorflow.TensorProto", "inference.ModelInferRequest"):
        response = reflect(server, reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
        assert response.WhichOneof("message_response") == "file_descriptor_response", symbol
    unknown = reflect(server, reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such.Symbol"))
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
