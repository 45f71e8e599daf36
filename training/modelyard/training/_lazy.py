"""Doors that load TensorFlow only when something that needs it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from modelyard.errors import MissingDependencyError

_EXTRA_PACKAGES = ("keras", "rich", "tensorboard", "tensorflow")


def load_attribute(door: str, modules: Mapping[str, str], name: str) -> Any:
    """Imports one public name of a package, for the ``__getattr__`` of its door.

    Args:
        door: Name of the package.
        modules: For each public name, the module that defines it.
        name: The name that was asked for.

    Returns:
        The object.

    Raises:
        AttributeError: The package has no such name.
        MissingDependencyError: A package of the extra ``training`` is not installed.
    """
    if name not in modules:
        raise AttributeError(f"module {door!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(modules[name]), name)
    except ModuleNotFoundError as exc:
        if exc.name not in _EXTRA_PACKAGES:
            raise
        raise MissingDependencyError(package=exc.name, extra="training", purpose=f"{door}.{name}") from exc
