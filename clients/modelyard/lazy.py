"""Packages that come with extras: loaded when a name is asked for that needs them, and named where they are missing."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from modelyard.errors import MissingDependencyError

#: Import names of what comes with extras: only their absence means that an extra is missing.
_EXTRA_PACKAGES = frozenset(
    {
        "PIL", "ai_edge_litert", "apache_beam", "jsonschema", "keras", "mlflow", "onnx", "onnxruntime", "onnxslim",
        "rich", "tensorboard", "tensorflow", "tf2onnx",
    }
)  # fmt: skip


@contextmanager
def needs_extra(extra: str, *packages: str, purpose: str) -> Iterator[None]:
    """For ``with``, around imports of packages, by their import names, that come with an extra.

    Raises:
        MissingDependencyError: One of them is not installed. What it needs itself is not meant: such an error stays.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        package = (exc.name or "").partition(".")[0]
        if package not in packages:
            raise
        raise MissingDependencyError(package=package, extra=extra, purpose=purpose) from exc


def load_attribute(package: str, modules: Mapping[str, str], name: str, *, extra: str) -> Any:
    """Imports one public name of a package, for its ``__getattr__``."""
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    with needs_extra(extra, *_EXTRA_PACKAGES, purpose=f"{package}.{name}"):
        return getattr(importlib.import_module(modules[name]), name)


def attach(
    package: str, modules: Mapping[str, Sequence[str]] | None = None, *, extra: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the ``__getattr__`` and the ``__dir__`` of a package whose names are imported when they are needed.

    Args:
        package: Its ``__name__``; it lists its public names in ``__all__``.
        modules: The names that each module defines; ``"._module"`` is in the package. None for those that the package
            imports ``if TYPE_CHECKING:``.
        extra: What brings the packages that the modules need.
    """

    @cache
    def table() -> dict[str, str]:
        found = _checked_imports(package) if modules is None else modules
        return {name: importlib.util.resolve_name(module, package) for module, names in found.items() for name in names}

    return lambda name: load_attribute(package, table(), name, extra=extra), lambda: list(sys.modules[package].__all__)


def _checked_imports(package: str) -> dict[str, list[str]]:
    """What a package imports for type checkers alone, by module: listed once, for them and for :func:`attach`."""
    body = ast.parse(Path(str(sys.modules[package].__file__)).read_text("utf-8")).body
    blocks = [node for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {str(node.module): [alias.name for alias in node.names] for node in imports}
