"""What the command line names, and Python has to import: classes of a Keras file, and functions that make models."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from modelyard.errors import ConfigurationError
from modelyard.lazy import needs_extra


def make_model(source: str, library: str) -> Any:
    """The model of a library that ``package.module:function`` returns."""
    from modelyard.export.sources import library_of
    from modelyard.training.user import find_object

    with needs_extra(library, library, purpose=f"--from {library}"):
        model = find_object(source)()
    if library_of(model) != library:
        raise ConfigurationError(
            f"{source} returned a {type(model).__name__}; with --from {library} a model of {library} is expected."
        )
    return model


def custom_objects(modules: Sequence[str]) -> dict[str, Any]:
    """Classes and functions of modules, by name, for Keras to find those that are not registered with it."""
    found: dict[str, object] = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as exc:
            # What the user's module fails to import is not the user's spelling of its name.
            if exc.name is None or not (name == exc.name or name.startswith(f"{exc.name}.")):
                raise
            raise ConfigurationError(
                f"Received --import {name}: there is no module {exc.name!r} in this folder or installed; expected a "
                "name as in Python's import, such as my_layers for my_layers.py."
            ) from exc
        package = name.partition(".")[0]
        for key, each in vars(module).items():
            if callable(each) and str(getattr(each, "__module__", "")).partition(".")[0] == package:
                found[key] = each
    return found
