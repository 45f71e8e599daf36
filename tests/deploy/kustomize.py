"""The part of kustomize that deploy/kubernetes uses, so that its overlays are tested where kubectl is not installed.

Where it is, test_kubernetes.py compares both results.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.conftest import documents

Resource = dict[str, Any]
_KNOWN = {"apiVersion", "kind", "images", "namespace", "patches", "resources"}


def render(folder: Path) -> list[Resource]:
    """Every resource of an overlay or base."""
    (kustomization,) = documents(folder / "kustomization.yaml")
    unknown = set(kustomization) - _KNOWN
    if unknown:
        raise ValueError(f"{folder}: this renderer knows no {unknown}")
    resources: list[Resource] = []
    for item in kustomization["resources"]:
        path = folder / item
        resources += render(path) if path.is_dir() else copy.deepcopy(documents(path))
    for patch in kustomization.get("patches", []):
        resources = _patched(resources, patch, folder)
    for image in kustomization.get("images", []):
        for pod in (found for resource in resources if (found := pod_spec(resource))):
            for container in [*pod.get("initContainers", []), *pod["containers"]]:
                if container["image"].partition(":")[0] == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"
    if "namespace" in kustomization:
        for resource in resources:
            if resource["kind"] != "Namespace":
                resource["metadata"]["namespace"] = kustomization["namespace"]
    return resources


def pod_spec(resource: Resource) -> dict[str, Any] | None:
    """The pod that a workload starts."""
    if resource["kind"] not in ("Deployment", "Job"):
        return None
    spec: dict[str, Any] = resource["spec"]["template"]["spec"]
    return spec


def _patched(resources: list[Resource], patch: dict[str, Any], folder: Path) -> list[Resource]:
    wanted = patch["target"]
    hit = [r for r in resources if r["kind"] == wanted["kind"] and r["metadata"]["name"] == wanted["name"]]
    if len(hit) != 1:
        raise ValueError(f"{folder}: {wanted} names {len(hit)} resources")
    content = yaml.safe_load((folder / patch["path"]).read_text() if "path" in patch else patch["patch"])
    if isinstance(content, dict):
        if content.get("$patch") != "delete":
            raise ValueError(f"{folder}: this renderer knows no merging patches")
        return [resource for resource in resources if resource is not hit[0]]
    for operation in content:
        _apply(hit[0], operation)
    return resources


def _apply(resource: Resource, operation: dict[str, Any]) -> None:
    """One operation of RFC 6902: add or replace."""
    *parents, last = operation["path"].lstrip("/").split("/")
    place: Any = resource
    for key in parents:
        place = place[int(key) if isinstance(place, list) else key]
    key = int(last) if isinstance(place, list) else last
    exists = key < len(place) if isinstance(key, int) else key in place
    if operation["op"] not in ("add", "replace") or (operation["op"] == "replace") != exists:
        raise ValueError(f"{operation['op']} {operation['path']}: it {'exists' if exists else 'does not exist'}")
    place[key] = operation["value"]
