"""Packages whose public names load TensorFlow and the like only when a name is asked for that needs them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from modelyard.errors import MissingDependencyError

#: Import names of what comes with extras: only their absence means that an extra is missing.
_EXTRA_PACKAGES = frozenset(
    {
        "PIL", "ai_edge_litert", "apache_beam", "jsonschema", "keras", "mlflow", "onnx", "onnxruntime", "onnxslim",
        "rich", "tensorboard", "tensorflow", "tf2onnx",
    }
)  # fmt: skip


def load_attribute(door: str, modules: Mapping[str, str], name: str, *, extra: str) -> Any:
    """Imports one public name of a package, for its ``__getattr__``."""
    if name not in modules:
        raise AttributeError(f"module {door!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(modules[name]), name)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in _EXTRA_PACKAGES:
            raise
        raise MissingDependencyError(package=str(exc.name), extra=extra, purpose=f"{door}.{name}") from exc


def attach(
    package: str, modules: Mapping[str, Sequence[str]], *, extra: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the ``__getattr__`` and the ``__dir__`` of a package whose names are imported when they are needed.

    Args:
        package: Its ``__name__``; it lists its public names in ``__all__``.
        modules: The names that each module defines; ``"._module"`` is in the package.
        extra: What brings the packages that the modules need.
    """
    table = {name: importlib.util.resolve_name(module, package) for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        return load_attribute(package, table, name, extra=extra)

    return load, lambda: list(sys.modules[package].__all__)
