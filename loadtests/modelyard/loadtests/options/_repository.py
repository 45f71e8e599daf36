"""Folders of models: which one is meant, and the requests that warm a version up."""

from __future__ import annotations

from pathlib import Path

from modelyard.artifact import WARMUP_FILE, list_models, list_versions
from modelyard.errors import ConfigurationError


def only_model(repository: Path) -> str:
    """Name of the model of a repository that has one; empty where it has another number of them."""
    names = list_models(repository) if repository.is_dir() else ()
    return names[0] if len(names) == 1 else ""


def model_dir(path: Path, model: str) -> Path:
    """The directory of a model: the path itself, or below it; an error where it has no version."""
    for found in (path / model, path):
        if found.is_dir() and list_versions(found):
            return found.resolve()
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist; expected a model repository.")
    names = list_models(path) if path.is_dir() else ()
    hint = f"It holds {', '.join(names)}: name one with --model." if names else "Expected a model repository."
    raise ConfigurationError(f"{path} holds no version of the model {model!r}. {hint}")


def warmup_file(path: Path, model: str, version: int | None) -> Path | None:
    """The requests that a version (None: the newest) is warmed up with; None where it has none."""
    found = path / WARMUP_FILE
    if not found.is_file():
        versions = {each.number: each.path for each in list_versions(model_dir(path, model))}
        found = versions.get(version or -1, versions[max(versions)]) / WARMUP_FILE
    return found if found.is_file() else None
