"""Packages whose doors load TensorFlow and the like only when a name is asked for that needs them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from modelyard.errors import MissingDependencyError

#: Import names of what comes with extras: only their absence means that an extra is missing.
_EXTRA_PACKAGES = frozenset(
    {
        "PIL", "ai_edge_litert", "jsonschema", "keras", "onnx", "onnxruntime", "onnxslim", "rich", "tensorboard",
        "tensorflow", "tf2onnx",
    }
)  # fmt: skip


def load_attribute(door: str, modules: Mapping[str, str], name: str, *, extra: str) -> Any:
    """Imports one public name of a package, for the ``__getattr__`` of its door.

    Args:
        door: Name of the package.
        modules: For each public name, the module that defines it.
        name: The name that was asked for.
        extra: What brings the packages that the module needs.

    Returns:
        The object.

    Raises:
        AttributeError: The package has no such name.
        MissingDependencyError: A package of the extra is not installed.
    """
    if name not in modules:
        raise AttributeError(f"module {door!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(modules[name]), name)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in _EXTRA_PACKAGES:
            raise
        raise MissingDependencyError(package=str(exc.name), extra=extra, purpose=f"{door}.{name}") from exc
