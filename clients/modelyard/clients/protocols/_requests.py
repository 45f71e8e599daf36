"""Request building: pure functions from a call to the bytes on the wire."""

from __future__ import annotations

import base64
import json
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy.typing as npt

from modelyard.clients.protocols._fast_predict import request_bytes
from modelyard.clients.values import ModelConfig, array_json
from modelyard.errors import (
    ConfigurationError,
    InvalidInputError,
    InvalidModelSpecError,
    RequestTooLargeError,
    UnsupportedError,
)
from modelyard.wire import dtype_by_numpy, serving_pb2

DEFAULT_SIGNATURE = "serving_default"
SIGNATURE_DEF_FIELD = "signature_def"
_MAX_VERSION = (1 << 63) - 1


class Target(NamedTuple):
    """Which servable a call is for; no version and no label is the newest version."""

    model: str
    version: int | None = None
    label: str | None = None


def make_target(model: str, version: int | None = None, label: str | None = None) -> Target:
    """Checks what a caller says about the servable."""
    _check_name("the name of a model", model)
    if version is not None:
        if label is not None:
            raise InvalidModelSpecError(f"Expected a version or a label; received both: {version} and {label!r}.")
        try:
            number = operator.index(version)
        except TypeError as exc:
            raise InvalidModelSpecError(f"Expected an integer version; received {version!r}.") from exc
        if isinstance(version, bool) or not 0 <= number <= _MAX_VERSION:
            raise InvalidModelSpecError(f"Expected a version from 0 to {_MAX_VERSION}; received {version!r}.")
        version = number
    if label is not None:
        _check_name("a version label", label)
    return Target(model=model, version=version, label=label)


def _check_name(what: str, name: str) -> None:
    # In a URL, dots alone mean another folder, whose address the caller has not asked for.
    if not isinstance(name, str) or name in ("", ".", ".."):
        raise InvalidModelSpecError(f"Expected {what}; received {name!r}.")
    try:
        name.encode()
    except UnicodeEncodeError as exc:
        raise InvalidModelSpecError(f"Expected {what}, in Unicode; received {name!r}.") from exc


def model_spec(target: Target, signature: str = "") -> serving_pb2.ModelSpec:
    """The gRPC form of a target."""
    spec = serving_pb2.ModelSpec(name=target.model, signature_name=signature)
    if target.version is not None:
        spec.version.value = target.version
    if target.label is not None:
        spec.version_label = target.label
    return spec


def model_path(target: Target) -> str:
    """The REST form of a target: ``/v1/models/NAME[/versions/N | /labels/L]``."""
    path = f"/v1/models/{quote(target.model, safe='')}"
    if target.version is not None:
        return f"{path}/versions/{target.version}"
    return path if target.label is None else f"{path}/labels/{quote(target.label, safe='')}"


def predict_message(
    target: Target, signature: str, arrays: Mapping[str, npt.NDArray[Any]], outputs: tuple[str, ...]
) -> bytes:
    body = request_bytes(model_spec(target, signature).SerializeToString(), arrays, outputs)
    if body is None:
        size = sum(array.nbytes for array in arrays.values())
        raise RequestTooLargeError(
            f"Inputs of {size} bytes do not fit into one message, which holds less than 2 GiB; send fewer rows."
        )
    return body


def metadata_message(target: Target) -> bytes:
    return serving_pb2.GetModelMetadataRequest(
        model_spec=model_spec(target), metadata_field=[SIGNATURE_DEF_FIELD]
    ).SerializeToString()


def status_message(target: Target) -> bytes:
    return serving_pb2.GetModelStatusRequest(model_spec=model_spec(target)).SerializeToString()


def reload_message(models: Sequence[ModelConfig]) -> bytes:
    entries = tuple(models) if isinstance(models, Iterable) else (models,)
    if not all(isinstance(model, ModelConfig) for model in entries):
        raise ConfigurationError(f"Expected a list of ModelConfig; received {models!r}.")
    request = serving_pb2.ReloadConfigRequest()
    request.config.model_config_list.SetInParent()
    for model in entries:
        if model.versions and model.latest is not None:
            raise ConfigurationError(f"Model {model.name!r}: expected latest or versions; received both.")
        entry = request.config.model_config_list.config.add()
        try:
            entry.name, entry.base_path, entry.model_platform = model.name, os.fspath(model.base_path), model.platform
            if model.versions:
                entry.model_version_policy.specific.versions.extend(model.versions)
            elif model.latest is not None:
                entry.model_version_policy.latest.num_versions = model.latest
            for label, version in model.labels.items():
                entry.version_labels[label] = version
        except (AttributeError, TypeError, ValueError) as exc:
            raise ConfigurationError(f"Model {model.name!r} cannot be configured so: {exc}.") from exc
    return request.SerializeToString()


def predict_json(signature: str, arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The body of a REST predict, in column form.

    Strings go as ``{"b64": ...}``, NaN and infinities as the bare words that TensorFlow Serving reads.
    """
    head = f'"signature_name":{json.dumps(signature)},' if signature else ""
    inputs = ",".join(f"{json.dumps(name)}:{_json_value(name, array)}" for name, array in arrays.items())
    return f'{{{head}"inputs":{{{inputs}}}}}'.encode()


def _json_value(name: str, array: npt.NDArray[Any]) -> str:
    if 0 in array.shape[:-1]:
        raise InvalidInputError(
            f"Input {name!r} has shape {list(array.shape)}: JSON has no form for an empty array of that shape. "
            "Send at least one row, or use gRPC."
        )
    dtype = dtype_by_numpy(array.dtype).name
    if dtype.startswith("complex"):
        raise UnsupportedError(
            f"Input {name!r} is {dtype}, which TensorFlow Serving's REST API cannot carry; use gRPC."
        )
    if dtype == "string":
        return json.dumps(_b64(array.tolist()), separators=(",", ":"))
    return array_json(array)


def _b64(value: Any) -> Any:
    if isinstance(value, list):
        return [_b64(item) for item in value]
    return {"b64": base64.b64encode(value).decode("ascii")}
