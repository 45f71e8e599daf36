"""Principals, their keys and tokens, and calls over every API with and without them."""

from __future__ import annotations

import hashlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from modelyard.wire import MODEL_SERVICE, PREDICTION_SERVICE, inference_pb2
from tests.support.server import RunningServer

#: What each method needs; None for what is open. A method that is not here fails tests/contract/test_access.py.
GRPC = {
    PREDICTION_SERVICE["Predict"].path: "predict",
    PREDICTION_SERVICE["Classify"].path: "predict",
    PREDICTION_SERVICE["Regress"].path: "predict",
    PREDICTION_SERVICE["MultiInference"].path: "predict",
    PREDICTION_SERVICE["GetModelMetadata"].path: "metadata",
    MODEL_SERVICE["GetModelStatus"].path: "metadata",
    MODEL_SERVICE["HandleReloadConfigRequest"].path: "admin",
    "/inference.GRPCInferenceService/ModelConfig": "metadata",
    "/inference.GRPCInferenceService/ModelInfer": "predict",
    "/inference.GRPCInferenceService/ModelMetadata": "metadata",
    "/inference.GRPCInferenceService/ModelReady": None,
    "/inference.GRPCInferenceService/ModelStatistics": "metrics",
    "/inference.GRPCInferenceService/ModelStreamInfer": "predict",
    "/inference.GRPCInferenceService/RepositoryIndex": "metadata",
    "/inference.GRPCInferenceService/RepositoryModelLoad": "admin",
    "/inference.GRPCInferenceService/RepositoryModelUnload": "admin",
    "/inference.GRPCInferenceService/LogSettings": "admin",
    "/inference.GRPCInferenceService/ServerLive": None,
    "/inference.GRPCInferenceService/ServerMetadata": "metadata",
    "/inference.GRPCInferenceService/ServerReady": None,
    "/grpc.health.v1.Health/Check": None,
    "/grpc.health.v1.Health/Watch": None,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "metadata",
}
REST = {
    "GET /v1/models": "metadata",
    "GET /v1/models/affine": "metadata",
    "GET /v1/models/affine/versions/1": "metadata",
    "GET /v1/models/affine/metadata": "metadata",
    "POST /v1/models/affine:predict": "predict",
    "POST /v1/models/affine/versions/1:predict": "predict",
    "POST /v1/models/affine:classify": "predict",
    "POST /v1/models/affine:regress": "predict",
    "GET /metrics": "metrics",
    "GET /v2": "metadata",
    "GET /v2/config": "admin",
    "GET /v2/logging": "metadata",
    "POST /v2/logging": "admin",
    "GET /openapi.json": "metadata",
    "GET /console": "metadata",
    "GET /console/live": "metadata",
    "GET /console/models/affine": "metadata",
    "GET /v2/health/live": None,
    "GET /v2/health/ready": None,
    "GET /v2/models/stats": "metrics",
    "GET /v2/models/affine/stats": "metrics",
    "GET /v2/models/affine/versions/1/stats": "metrics",
    "GET /v2/models/affine/ready": None,
    "GET /v2/models/affine/versions/1/ready": None,
    "POST /v2/models/affine/infer": "predict",
    "POST /v2/models/affine/versions/1/infer": "predict",
    "GET /v2/models/affine/config": "metadata",
    "GET /v2/models/affine": "metadata",
    "GET /v2/models/affine/versions/1": "metadata",
    "POST /v2/repository/index": "metadata",
    "POST /v2/repository/models/affine/load": "admin",
    "POST /v2/repository/models/affine/unload": "admin",
    # SageMaker's own: the second is a prediction with the first model.
    "GET /ping": None,
    "POST /invocations": "predict",
}
SCOPES = ("predict", "metadata", "metrics", "admin")
ISSUER, AUDIENCE = "https://issuer.example", "modelyard"
BODY = b'{"instances": [1.0]}'
#: A form that only Python answers.
ODD_BODY = b'{"instances": [1.0], "unknown": 1, "signature_name": "serving_default"}'


def key_of(name: str) -> str:
    return f"myd_the-key-of-{name}"


def entry(name: str, *scopes: str, **more: Any) -> str:
    digest = hashlib.sha256(key_of(name).encode()).hexdigest()
    fields = {"name": name, "scopes": list(scopes), "keys": [f"sha256:{digest}"], **more}
    lines = [f"{field} = {json.dumps(value)}" for field, value in fields.items()]
    return "\n".join(["[[principal]]", *lines, ""])


def claims_entry(name: str, claims: str, *scopes: str) -> str:
    return f'[[principal]]\nname = "{name}"\nclaims = {claims}\nscopes = {json.dumps(list(scopes))}\n'


@dataclass(frozen=True, kw_only=True)
class Issuer:
    """Signs web tokens, and has its public key in a file."""

    private: Ed25519PrivateKey
    key_id: str

    def jwk(self) -> dict[str, Any]:
        key = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(self.private.public_key()))
        return {**key, "kid": self.key_id, "alg": "EdDSA", "use": "sig"}

    def token(self, **claims: Any) -> str:
        said = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60, **claims}
        return jwt.encode(said, self.private, algorithm="EdDSA", headers={"kid": self.key_id})


def write_jwks(file: Path, *issuers: Issuer) -> None:
    file.write_text(json.dumps({"keys": [issuer.jwk() for issuer in issuers]}))


def send(
    server: RunningServer, route: str, *, headers: Mapping[str, str] | None = None, body: bytes = BODY
) -> tuple[int, str, Mapping[str, str]]:
    method, _, path = route.partition(" ")
    request = urllib.request.Request(
        server.rest_url + path, data=body if method == "POST" else None, headers=dict(headers or {}), method=method
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers.items())
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode(), dict(exc.headers.items())


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def call(channel: grpc.Channel, path: str, message: bytes, headers: Mapping[str, str]) -> str:
    """The code that a method's first answer, or its end, has; and of the inference stream, of its first answer."""
    metadata = tuple(headers.items())
    try:
        if path.endswith(("/ServerReflectionInfo", "/ModelStreamInfer")):
            stream = channel.stream_stream(path, bytes, bytes)(iter([message]), metadata=metadata, timeout=20)
            first = next(iter(stream))
            stream.cancel()
            if path.endswith("/ModelStreamInfer"):
                text = inference_pb2.ModelStreamInferResponse.FromString(first).error_message
                return "UNAUTHENTICATED" if "needs credentials" in text else "DENIED" if "no scope" in text else "OK"
        elif path.endswith("/Watch"):
            watch = channel.unary_stream(path, bytes, bytes)(message, metadata=metadata, timeout=20)
            next(iter(watch))
            watch.cancel()
        else:
            channel.unary_unary(path, bytes, bytes)(message, metadata=metadata, timeout=20)
    except grpc.RpcError as exc:
        code: str = exc.code().name
        return {"PERMISSION_DENIED": "DENIED"}.get(code, code)
    return "OK"
