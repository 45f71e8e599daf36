"""KServe's and Kubeflow's manifests against the API models that those projects publish."""

from __future__ import annotations

import copy
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from modelyard.serving import parse_flags
from tests.deploy.conftest import DEPLOY, documents
from tests.deploy.openapi_models import Model, PackageNotFoundError, check, models
from tests.support.models import publish_affine
from tests.support.server import serve

KSERVE = sorted((DEPLOY / "kserve").glob("*.yaml"))
KUBEFLOW = sorted((DEPLOY / "kubeflow").glob("*.yaml"))
#: By API version and kind: package, its folder of models, and the model.
KINDS = {
    ("serving.kserve.io/v1alpha1", "ServingRuntime"): ("kserve", "kserve/models", "V1alpha1ServingRuntime"),
    ("serving.kserve.io/v1beta1", "InferenceService"): ("kserve", "kserve/models", "V1beta1InferenceService"),
    ("kubeflow.org/v1", "TFJob"): ("kubeflow-training", "kubeflow/training/models", "KubeflowOrgV1TFJob"),
}


@cache
def _definitions() -> dict[str, Any]:
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / "v1.36.0-local-strict"
    found: dict[str, Any] = json.loads((folder / "_definitions.json").read_text())
    return found


def core_errors(kind: str, value: Any) -> list[str]:
    """What Kubernetes' schemas find wrong with a value of one of its types, such as V1PodTemplateSpec."""
    package = "io.k8s.apimachinery.pkg.apis.meta.v1" if kind == "V1ObjectMeta" else "io.k8s.api.core.v1"
    root = {**_definitions(), "$ref": f"#/$defs/{package}.{kind.removeprefix('V1')}"}
    validator = jsonschema.Draft202012Validator(root)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def errors(document: dict[str, Any]) -> list[str]:
    package, folder, kind = KINDS[document["apiVersion"], document["kind"]]
    return check(document, kind, known(package, folder), core_errors)


def known(package: str, folder: str) -> dict[str, Model]:
    try:
        found = models(package, folder)
    except PackageNotFoundError:
        pytest.skip(f"the models of {package} are not installed: pip install --no-deps {package}")
    assert len(found) > 20
    return found


@pytest.mark.parametrize("path", [*KSERVE, *KUBEFLOW], ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_follows_the_models(path: Path) -> None:
    found = documents(path)
    assert found
    for document in found:
        assert errors(document) == []


@pytest.mark.parametrize(
    ("path", "place", "value"),
    [
        (KUBEFLOW[0], ("spec", "tfReplicaSpecs", "Worker", "replicas"), "2"),
        (KUBEFLOW[0], ("spec", "tfReplicaSpecs", "Worker", "template", "spec", "contaners"), []),
        (KUBEFLOW[0], ("spec", "runPolicy", "cleanPods"), "All"),
        (DEPLOY / "kserve" / "runtime.yaml", ("spec", "supportedModelFormats"), {"name": "onnx"}),
        (DEPLOY / "kserve" / "runtime.yaml", ("spec", "containers", 0, "port"), 8080),
        (DEPLOY / "kserve" / "inference-service.yaml", ("spec", "predictor", "model", "storageUrl"), "s3://x"),
    ],
)
def test_the_models_find_mistakes(path: Path, place: tuple[str | int, ...], value: Any) -> None:
    document = copy.deepcopy(documents(path)[0])
    inner: Any = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    assert errors(document) != []


def test_runtimes_start_the_server_where_kserve_expects_it() -> None:
    for path in (DEPLOY / "kserve" / "runtime.yaml", DEPLOY / "kserve" / "runtime-savedmodel.yaml"):
        ((container,),) = [document["spec"]["containers"] for document in documents(path)]
        options = parse_flags([flag.replace("{{.Name}}", "fashion") for flag in container["args"]])
        (model,) = options.models
        assert (model.name, str(model.base_path)) == ("fashion", "/mnt/models")
        assert {port["containerPort"] for port in container["ports"]} == {options.rest_api_port}
        assert container["readinessProbe"]["httpGet"]["port"] == options.rest_api_port
        # Proxies notice before the ports close, and all is over before the kubelet kills, which is after 30 s.
        lifecycle = options.lifecycle
        assert lifecycle.shutdown_delay_s >= 5
        assert lifecycle.shutdown_delay_s + lifecycle.drain_s < 25


def test_a_model_may_come_after_the_server(tmp_path: Path) -> None:
    publish_affine(tmp_path / "image", slope=2.0, intercept=0.0)
    ((container,),) = [document["spec"]["containers"] for document in documents(DEPLOY / "kserve" / "runtime.yaml")]
    place = tmp_path / "mnt" / "models"
    place.parent.mkdir()
    own = ("--port", "--rest_api_port", "--model_name", "--model_base_path")
    flags = [flag for flag in container["args"] if not flag.startswith(own)]
    with serve(place, model="fashion", log_dir=tmp_path, flags=flags, wait=False) as server:
        server.wait_until(lambda: "cannot be read" in server.log_text(), 60, "looked for")
        assert server.get("/v2/health/ready")[0] == 400
        place.symlink_to(tmp_path / "image")
        server.wait_until(lambda: server.get("/v2/health/ready")[0] == 200, 10, "ready")


def test_the_example_names_a_runtime_that_takes_it() -> None:
    (runtime,) = documents(DEPLOY / "kserve" / "runtime.yaml")
    (service,) = documents(DEPLOY / "kserve" / "inference-service.yaml")
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    formats = {(item["name"], item["version"]) for item in runtime["spec"]["supportedModelFormats"]}
    assert (model["modelFormat"]["name"], model["modelFormat"]["version"]) in formats


def test_kubeflow_finds_the_container_and_the_volume() -> None:
    (runs,) = documents(DEPLOY / "kubernetes" / "training" / "runs.yaml")
    for path in KUBEFLOW:
        for job in documents(path):
            for replica in job["spec"]["tfReplicaSpecs"].values():
                pod = replica["template"]["spec"]
                # The operator looks for this name.
                assert [container["name"] for container in pod["containers"]] == ["tensorflow"]
                assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == runs["metadata"]["name"]
                assert pod["containers"][0]["command"][0] == "modelyard"
