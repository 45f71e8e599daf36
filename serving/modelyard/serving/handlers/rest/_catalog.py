"""Pages that TensorFlow Serving does not have: the list of models, and the configuration in force."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import TypeVar

from modelyard.artifact import Signature
from modelyard.errors import ModelNotFoundError, ModelyardError
from modelyard.serving.config import ModelConfig, ServerOptions
from modelyard.serving.repository import ModelManager, VersionStatus
from modelyard.serving.requests import ModelSpec, format_shape
from modelyard.serving.servables import Servable

_T = TypeVar("_T")

#: Fields of options that hold secrets.
_SECRET = ("key", "certificate", "authority")
_MASK = "****"


def read_loaded(manager: ModelManager, spec: ModelSpec, read: Callable[[Servable], _T], otherwise: _T) -> _T:
    """What is read of a loaded version; something else where none is loaded: its status says why."""
    try:
        with manager.acquire(spec) as servable:
            return read(servable)
    except ModelyardError:
        return otherwise


def statuses_of(manager: ModelManager, name: str) -> Sequence[VersionStatus]:
    """The states of a model's versions, newest first; none of a model without a version yet."""
    try:
        return manager.status(name)
    except ModelNotFoundError:
        return ()


def signatures_of(manager: ModelManager, name: str) -> Mapping[str, Signature]:
    """The signatures of the version that answers by default; none where nothing is loaded."""
    none: Mapping[str, Signature] = {}
    return read_loaded(manager, ModelSpec(name=name), lambda servable: servable.signatures, none)


def models_json(manager: ModelManager, administered: Callable[[str], bool]) -> str:
    """The models; where their files are is said of those alone that the caller administers."""
    models = [_model(manager, config, place=administered(config.name)) for config in manager.configs]
    return json.dumps({"models": models}, indent=1) + "\n"


def _model(manager: ModelManager, config: ModelConfig, *, place: bool) -> dict[str, object]:
    name = config.name
    return {
        "name": name,
        **({"base_path": str(config.base_path)} if place else {}),
        "ready": manager.ready(name),
        "labels": dict(manager.labels(name)),
        "versions": [
            {
                "version": str(status.version),
                "state": status.state.name,
                "error": "" if status.error is None else status.error.message,
            }
            for status in statuses_of(manager, name)
        ],
        "signatures": {key: _signature(signature) for key, signature in signatures_of(manager, name).items()},
    }


def _signature(signature: Signature) -> dict[str, object]:
    return {
        "method": signature.method,
        "inputs": {spec.name: f"{spec.dtype} {format_shape(spec.shape)}" for spec in signature.inputs},
        "outputs": {spec.name: f"{spec.dtype} {format_shape(spec.shape)}" for spec in signature.outputs},
    }


def config_json(options: ServerOptions, manager: ModelManager) -> str:
    """The options that the server runs with, and the models as they are configured now; secrets are masked."""
    # Locks and the like do not travel: asdict would copy them.
    names = {field.name for field in fields(options)} - {"models", "watch"}
    document = {name: _plain(getattr(options, name)) for name in names}
    watch = {field.name for field in fields(options.watch)} - {"load_slots"}
    document["watch"] = {name: _plain(getattr(options.watch, name)) for name in watch}
    document["models"] = [
        {
            "name": config.name,
            "base_path": str(config.base_path),
            "policy": {"latest": config.policy.latest, "specific": sorted(config.policy.specific or ())},
            "labels": dict(config.labels),
        }
        for config in manager.configs
    ]
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _MASK if name in _SECRET and item else _plain(item) for name, item in asdict(value).items()}
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)
