"""Model configurations and reload requests, by TensorFlow Serving's own messages and stubs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format

from tests.support.server import RunningServer

TENSORFLOW = 'model_platform: "tensorflow"'


def model_text(
    name: str,
    base_path: Path | str,
    *,
    policy: str = "",
    labels: Mapping[str, int] | None = None,
    platform: str = TENSORFLOW,
) -> str:
    """One entry of a model config list, in text format."""
    parts = [f'name: "{name}" base_path: "{base_path}" {platform}']
    if policy:
        parts.append(f"model_version_policy {{ {policy} }}")
    parts += [f'version_labels {{ key: "{label}" value: {number} }}' for label, number in (labels or {}).items()]
    return f"config {{ {' '.join(parts)} }}"


def config_text(*models: str) -> str:
    return "model_config_list { " + "\n".join(models) + " }\n"


def reload_config(server: RunningServer, text: str, *, address: str | None = None) -> tuple[str, str]:
    """Sends HandleReloadConfigRequest with the official stub; returns the code's name and the message."""
    from tensorflow_serving.apis import model_management_pb2, model_service_pb2_grpc

    request = model_management_pb2.ReloadConfigRequest()
    text_format.Parse(text, request.config)
    with grpc.insecure_channel(address or server.grpc_address) as channel:
        try:
            response = model_service_pb2_grpc.ModelServiceStub(channel).HandleReloadConfigRequest(request, timeout=60)
        except grpc.RpcError as exc:
            return exc.code().name, exc.details() or ""
    assert response.status.error_code == 0
    return "OK", ""


def available(server: RunningServer, name: str) -> set[int]:
    """The versions that the status of a model says are AVAILABLE."""
    return {number for number, state in states(server, name).items() if state == "AVAILABLE"}


def states(server: RunningServer, name: str) -> dict[int, str]:
    status, text = server.get(f"/v1/models/{name}")
    if status == 404:
        return {}
    # 503, where none of them could answer since the start.
    assert status in (200, 503), (status, text)
    return {int(row["version"]): row["state"] for row in json.loads(text)["model_version_status"]}


def ask(server: RunningServer, name: str, *, where: str = "", x: float = 1.0) -> Any:
    """The prediction for one value, or the error as (HTTP status, message)."""
    status, text = server.post(f"/v1/models/{name}{where}:predict", json.dumps({"instances": [x]}).encode())
    answer = json.loads(text)
    return answer["predictions"][0] if status == 200 else (status, answer["error"])
