"""The Open Inference Protocol over gRPC and REST: Triton, KServe, MLServer, and modelyard's own server."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from urllib.parse import quote

from modelyard.clients.protocols import (
    DEFAULT_SIGNATURE,
    Answer,
    Call,
    Flow,
    Pause,
    PredictCall,
    Protocol,
    Target,
    chosen,
    parse,
    parse_json,
)
from modelyard.clients.protocols.v2 import _codec as _v2_codec
from modelyard.clients.values import (
    ModelMetadata,
    ModelStatus,
    Prediction,
    VersionState,
    VersionStatus,
    check_inputs,
    check_outputs,
    needs_signature,
    to_arrays,
)
from modelyard.errors import InvalidRequestError, ModelNotFoundError, ModelyardError, ProtocolError, UnavailableError
from modelyard.wire import INFERENCE_SERVICE, decimal, inference_pb2

_BINARY_EXTENSION = "binary_tensor_data"
_Described = Generator[Call | Pause, Answer, tuple[ModelMetadata, tuple[str, ...]]]


_INFER, _METADATA, _READY = (INFERENCE_SERVICE[name].path for name in ("ModelInfer", "ModelMetadata", "ServerReady"))


class _V2Protocol(Protocol):
    """What both transports share."""

    @abstractmethod
    def _describe(self, target: Target, signature: str, at_most_s: float | None = None) -> _Described:
        """Asks for the metadata of one signature, and the versions that are ready."""

    def metadata(self, target: Target, signature: str = "") -> Flow[ModelMetadata]:
        """Describes one signature of a model, fresh from the server."""
        metadata, _ = yield from self._describe(target, signature)
        return metadata

    def status(self, target: Target, at_most_s: float | None = None) -> Flow[ModelStatus]:
        """States of a model's versions: the protocol names those that are ready, and no others."""
        metadata, versions = yield from self._describe(target, "", at_most_s)
        numbers = {number for version in versions if (number := decimal(version)) is not None}
        if target.version is not None:
            numbers &= {target.version} if numbers else set()
            numbers = numbers or {target.version}
        elif not numbers:
            # A server whose versions have no numbers, or that names none, has described the model all the same.
            numbers = {0}
        rows = [
            VersionStatus(version=number, state=VersionState.AVAILABLE, error_code="OK", error_message="")
            for number in sorted(numbers, reverse=True)
        ]
        return ModelStatus(model=metadata.model, versions=tuple(rows))


class GrpcV2Protocol(_V2Protocol):
    """The protocol's gRPC service."""

    name = "The Open Inference Protocol"

    def predict(self, call: PredictCall) -> Flow[Prediction]:
        _v2_codec.version_text(call.target)
        signature = None
        # The service describes the default signature only.
        if needs_signature(call.inputs) and not _other(call.signature):
            signature = yield from self.known_signature(call.target, call.signature)
        body = _v2_codec.infer_message(call, to_arrays(call.inputs, signature))
        answer = yield Call(path=_INFER, body=body)
        return chosen(_v2_codec.prediction_from_message(answer.body, call), call.outputs)

    def probe(self) -> Flow[bool]:
        answer = yield Call(path=_READY, body=b"", retry=False)
        return parse(inference_pb2.ServerReadyResponse, answer.body).ready

    def _describe(self, target: Target, signature: str, at_most_s: float | None = None) -> _Described:
        if _other(signature):
            raise InvalidRequestError(
                f"Over gRPC the Open Inference Protocol describes the signature {DEFAULT_SIGNATURE!r} only; "
                f"received {signature!r}. Use http+v2, or grpc."
            )
        request = inference_pb2.ModelMetadataRequest(name=target.model, version=_v2_codec.version_text(target))
        answer = yield Call(path=_METADATA, body=request.SerializeToString(), at_most_s=at_most_s)
        return _v2_codec.metadata_from_message(answer.body, target, signature)


class RestV2Protocol(_V2Protocol):
    """The protocol over REST, with binary tensors where the server offers them."""

    name = "The Open Inference Protocol"

    def __init__(self, *, metadata_ttl_s: float) -> None:
        super().__init__(metadata_ttl_s=metadata_ttl_s)
        self._binary: bool | None = None

    def predict(self, call: PredictCall) -> Flow[Prediction]:
        path = f"{_path(call.target)}/infer"
        binary = self._binary
        if binary is None:
            answer = yield Call(path="/v2", body=None, preparing=True)
            document = parse_json(answer.body)
            extensions = document.get("extensions") if isinstance(document, dict) else None
            binary = self._binary = isinstance(extensions, list) and _BINARY_EXTENSION in extensions
        signature = None
        if needs_signature(call.inputs) or not binary:
            signature = yield from self.known_signature(call.target, call.signature)
        arrays = to_arrays(call.inputs, signature)
        if signature is not None and not binary:
            check_inputs(arrays, signature)
            check_outputs(call.outputs, signature)
        body, headers = _v2_codec.infer_json(call, arrays, binary=binary)
        answer = yield Call(path=path, body=body, headers=headers)
        return chosen(_v2_codec.prediction_from_answer(answer, call), call.outputs)

    def probe(self) -> Flow[bool]:
        try:
            yield Call(path="/v2/health/ready", body=None, retry=False)
        except (UnavailableError, ProtocolError):
            return False
        # Some servers have no such page: whatever else they say, they take calls.
        except ModelNotFoundError:
            return True
        except ModelyardError:
            return False
        return True

    def _describe(self, target: Target, signature: str, at_most_s: float | None = None) -> _Described:
        query = f"?{_v2_codec.SIGNATURE_PARAMETER}={quote(signature, safe='')}" if _other(signature) else ""
        answer = yield Call(path=f"{_path(target)}{query}", body=None, at_most_s=at_most_s)
        return _v2_codec.metadata_from_json(answer.body, target, signature)


def _path(target: Target) -> str:
    version = _v2_codec.version_text(target)
    path = f"/v2/models/{quote(target.model, safe='')}"
    return f"{path}/versions/{version}" if version else path


def _other(signature: str) -> bool:
    # Only modelyard's server knows signatures: to all others none is named where the default one will do.
    return signature not in ("", DEFAULT_SIGNATURE)
