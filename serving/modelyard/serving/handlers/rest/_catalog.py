"""Pages that TensorFlow Serving does not have: the list of models, and the configuration in force."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from modelyard.artifact import Signature
from modelyard.errors import ModelyardError
from modelyard.serving.repository import ModelManager
from modelyard.serving.requests import ModelSpec, format_shape

#: Fields of options whose values nobody must read.
_SECRET = ("key", "certificate", "authority")
_MASK = "****"


def models_json(manager: ModelManager) -> str:
    """The models with their versions, states, labels and signatures.

    Args:
        manager: The models.
    """
    return json.dumps({"models": [_model(manager, config.name) for config in manager.configs]}, indent=1) + "\n"


def _model(manager: ModelManager, name: str) -> dict[str, Any]:
    config = next(config for config in manager.configs if config.name == name)
    try:
        statuses = manager.status(name)
    except ModelyardError:
        statuses = ()
    return {
        "name": name,
        "base_path": str(config.base_path),
        "ready": manager.ready(name),
        "labels": dict(manager.labels(name)),
        "versions": [
            {
                "version": str(status.version),
                "state": status.state.name,
                "error": "" if status.error is None else status.error.message,
            }
            for status in statuses
        ],
        "signatures": _signatures(manager, name),
    }


def _signatures(manager: ModelManager, name: str) -> dict[str, Any]:
    try:
        with manager.acquire(ModelSpec(name=name)) as servable:
            return {key: _signature(signature) for key, signature in servable.signatures.items()}
    except ModelyardError:
        # Nothing is loaded: the versions say why.
        return {}


def _signature(signature: Signature) -> dict[str, Any]:
    return {
        "method": signature.method,
        "inputs": {spec.name: f"{spec.dtype} {format_shape(spec.shape)}" for spec in signature.inputs},
        "outputs": {spec.name: f"{spec.dtype} {format_shape(spec.shape)}" for spec in signature.outputs},
    }


def config_json(options: Any, manager: ModelManager) -> str:
    """The options that the server runs with, and the models as they are configured now; secrets are masked.

    Args:
        options: The server's options, a dataclass.
        manager: The models.
    """
    # Locks and the like do not travel: asdict would copy them.
    fields = {name: getattr(options, name) for name in options.__dataclass_fields__ if name not in ("models", "watch")}
    document = {name: _plain(value) for name, value in fields.items()}
    watch = options.watch
    document["watch"] = {
        name: _plain(getattr(watch, name)) for name in watch.__dataclass_fields__ if name != "load_slots"
    }
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


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {name: _MASK if name in _SECRET and item else _plain(item) for name, item in asdict(value).items()}
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)
