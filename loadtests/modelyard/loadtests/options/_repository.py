"""Folders of models: which one is meant, and the requests that warm a version up."""

from __future__ import annotations

from pathlib import Path

from modelyard.artifact import WARMUP_FILE, list_models, list_versions
from modelyard.errors import ConfigurationError


def only_model(repository: Path) -> str:
    """Name of the model of a repository that has one; empty where it has another number of them.

    Args:
        repository: The folder.
    """
    names = list_models(repository) if repository.is_dir() else ()
    return names[0] if len(names) == 1 else ""


def model_dir(path: Path, model: str) -> Path:
    """Finds a model's directory.

    Args:
        path: The directory itself, or a repository that has it.
        model: Name of the model.

    Raises:
        ConfigurationError: There is no version of it.
    """
    for found in (path / model, path):
        if found.is_dir() and list_versions(found):
            return found.resolve()
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist; expected a model repository.")
    names = list_models(path) if path.is_dir() else ()
    hint = f"It holds {', '.join(names)}: name one with --model." if names else "Expected a model repository."
    raise ConfigurationError(f"{path} holds no version of the model {model!r}. {hint}")


def warmup_file(path: Path, model: str, version: int | None) -> Path | None:
    """The requests that a version is warmed up with.

    Args:
        path: A repository, the directory of a model, or that of a version.
        model: Name of the model.
        version: The version; None for the newest, and where there is no such version.

    Returns:
        The file; None where the version has none.

    Raises:
        ConfigurationError: There is no version.
    """
    found = path / WARMUP_FILE
    if not found.is_file():
        versions = {each.number: each.path for each in list_versions(model_dir(path, model))}
        found = versions.get(version or -1, versions[max(versions)]) / WARMUP_FILE
    return found if found.is_file() else None
