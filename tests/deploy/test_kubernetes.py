"""deploy/kubernetes against Kubernetes' own schemas, against kubectl, and against the server it starts."""

from __future__ import annotations

import copy
import ipaddress
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from modelyard.serving import ServerOptions, parse_flags
from tests.deploy.conftest import DEPLOY, exposed_metrics, metrics_in
from tests.deploy.kustomize import Resource, pod_spec, render
from tests.support.models import publish_affine
from tests.support.server import serve

KUBERNETES = DEPLOY / "kubernetes"
FOLDERS = [KUBERNETES / "base", *sorted((KUBERNETES / "overlays").iterdir())]
#: The oldest version that the manifests are for, and one of the newest.
VERSIONS = ("1.32", "1.36")
#: Of custom resource definitions; Kubernetes has no schemas for them.
CUSTOM = {"ServiceMonitor"}


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def resources(request: pytest.FixtureRequest) -> list[Resource]:
    return render(request.param)


def one(resources: list[Resource], kind: str) -> Any:
    (found,) = [resource for resource in resources if resource["kind"] == kind]
    return found


def server(resources: list[Resource]) -> Any:
    pod = pod_spec(one(resources, "Deployment"))
    assert pod is not None
    (container,) = pod["containers"]
    return container


@pytest.mark.parametrize("version", VERSIONS)
def test_follows_the_schemas(resources: list[Resource], version: str) -> None:
    checked = 0
    for resource in resources:
        if resource["kind"] not in CUSTOM:
            kubernetes_validate.validate(resource, version, strict=True)
            checked += 1
    assert checked >= 8


@pytest.mark.parametrize("address", ["169.254.169.254", "169.254.170.23"])
def test_pods_that_copy_models_reach_credentials_that_a_cloud_gives_them(address: str) -> None:
    """Instance metadata, and EKS Pod Identity: over HTTP, at addresses of the link."""
    egress = one(render(KUBERNETES / "overlays" / "object-store"), "NetworkPolicy")["spec"]["egress"]
    assert any(
        ipaddress.ip_address(address) in ipaddress.ip_network(peer["ipBlock"]["cidr"])
        for rule in egress
        for peer in rule.get("to", [])
        if 80 in [each["port"] for each in rule["ports"]]
    )
    # Nothing else in the cluster is open.
    assert all("to" in rule or {each["port"] for each in rule["ports"]} == {53, 443} for rule in egress)


@pytest.mark.parametrize("field", ["replicaz", "strategy"])
def test_the_schemas_find_mistakes(field: str) -> None:
    wrong = copy.deepcopy(one(render(KUBERNETES / "base"), "Deployment"))
    wrong["spec"][field] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl, whose kustomize is the judge here, is missing")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_kubectl_renders_the_same(folder: Path) -> None:
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr

    def by_name(resources: list[Resource]) -> dict[tuple[str, str], Resource]:
        return {(resource["kind"], resource["metadata"]["name"]): resource for resource in resources}

    assert by_name(list(yaml.safe_load_all(done.stdout))) == by_name(render(folder))


def test_pods_have_no_rights(resources: list[Resource]) -> None:
    pod = pod_spec(one(resources, "Deployment"))
    assert pod is not None
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]) == {"requests", "limits"}


def options_of(container: Any) -> ServerOptions:
    return parse_flags([flag for flag in container["args"] if "config_file" not in flag], {"MODEL_NAME": "fashion"})


def test_what_has_no_room_is_refused(resources: list[Resource]) -> None:
    """The kernel would end the container; docs/deployment.md has what was measured."""
    assert options_of(server(resources)).lifecycle.probe_loads


def test_stopping_takes_less_than_the_grace_period(resources: list[Resource]) -> None:
    container = server(resources)
    options = options_of(container)
    pause_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    pod = pod_spec(one(resources, "Deployment"))
    assert pod is not None
    assert pause_s + options.lifecycle.drain_s < pod["terminationGracePeriodSeconds"]


def test_selectors_and_ports_meet(resources: list[Resource]) -> None:
    template = one(resources, "Deployment")["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    ports = {port["name"] for port in server(resources)["ports"]}
    services = [resource for resource in resources if resource["kind"] == "Service"]
    assert len(services) == 2
    for service in services:
        assert service["spec"]["selector"].items() <= labels
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert one(resources, kind)["spec"]["selector"]["matchLabels"].items() <= labels
    policy = one(resources, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} <= ports
    target = one(resources, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert target["name"] == one(resources, "Deployment")["metadata"]["name"]
    endpoint = one(resources, "ServiceMonitor")["spec"]["endpoints"][0]
    assert endpoint["port"] in ports


def test_volumes_meet(resources: list[Resource]) -> None:
    pod = pod_spec(one(resources, "Deployment"))
    assert pod is not None
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounted = {
        mount["name"]
        for container in [*pod["containers"], *pod.get("initContainers", [])]
        for mount in container["volumeMounts"]
    }
    assert mounted == volumes
    claims = [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
    made = [r["metadata"]["name"] for r in resources if r["kind"] == "PersistentVolumeClaim"]
    assert claims == made


def test_the_server_understands_flags_and_probes(tmp_path: Path) -> None:
    """The deployment's own flags, configuration and probe paths, on a server of this machine."""
    resources = render(KUBERNETES / "base")
    config = one(resources, "ConfigMap")["data"]["monitoring.config"]
    (tmp_path / "monitoring.config").write_text(config)
    container = server(resources)
    flags = [flag.replace("/etc/modelyard", str(tmp_path)) for flag in container["args"]]
    (tmp_path / "fashion").mkdir()
    with serve(tmp_path / "fashion", model="fashion", log_dir=tmp_path, flags=flags, wait=False) as running:
        live = container["livenessProbe"]["httpGet"]["path"]
        ready = container["readinessProbe"]["httpGet"]["path"]
        # It would have a pod killed that waits for its models.
        assert "startupProbe" not in container
        running.wait_until(lambda: running.get(live)[0] == 200, 60, "live")
        # Probes take 200 to 399 for success.
        assert not 200 <= running.get(ready)[0] < 400
        publish_affine(tmp_path / "fashion", slope=1.0, intercept=0.0)
        running.wait_until(lambda: running.get(ready)[0] == 200, 60, "ready")
        metrics = one(resources, "ServiceMonitor")["spec"]["endpoints"][0]["path"]
        assert running.get(metrics)[0] == 200


def test_the_autoscaler_reads_what_the_adapter_makes() -> None:
    (rule,) = yaml.safe_load((KUBERNETES / "prometheus-adapter.yaml").read_text())
    metrics = one(render(KUBERNETES / "base"), "HorizontalPodAutoscaler")["spec"]["metrics"]
    (pods,) = [metric["pods"] for metric in metrics if metric["type"] == "Pods"]
    assert pods["metric"]["name"] == rule["name"]["as"]
    in_flight = ":modelyard:serving:requests_in_flight"
    assert in_flight in rule["seriesQuery"]
    assert {in_flight} < set(metrics_in(rule["metricsQuery"])) <= exposed_metrics()
    assert rule["metricsQuery"].count("<<.LabelMatchers>>") == len(metrics_in(rule["metricsQuery"]))
    assert any(metric["type"] == "Resource" for metric in metrics)
