"""Version labels, kept beside the versions in ``<repository>/<model>/labels.json``.

The file is a JSON object from label to version. It is replaced as a whole, so
that a reader sees the old labels or the new ones and nothing between.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from modelyard.artifact._remote import Location, RemotePath
from modelyard.errors import ConfigurationError, ManifestError, PublishError

LABELS_NAME = "labels.json"
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
#: Words that name a version in another way.
_TAKEN = frozenset({"latest"})


def read_labels(model_dir: Location) -> dict[str, int]:
    """The labels of a model.

    Args:
        model_dir: ``<repository>/<model>``.

    Returns:
        Versions by label; nothing where there is no file.

    Raises:
        ArtifactError: The store that holds it cannot be reached.
        ManifestError: The file is not what it must be.
    """
    path = model_dir / LABELS_NAME
    try:
        document = json.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise ManifestError(f"{path} cannot be read: {exc}") from exc
    if not isinstance(document, dict) or not all(type(number) is int for number in document.values()):
        raise ManifestError(f"{path} is not a JSON object from label to version number.")
    return document


def write_labels(model_dir: Location, labels: Mapping[str, int]) -> None:
    """Replaces the labels of a model.

    Args:
        model_dir: ``<repository>/<model>``.
        labels: Versions by label.

    Raises:
        ArtifactError: The store that holds it cannot be reached, or refuses.
        ConfigurationError: A label is no plain word that starts with a letter, or is ``latest``.
        PublishError: The file cannot be written.
    """
    for label in labels:
        if not _LABEL.fullmatch(label) or label in _TAKEN:
            raise ConfigurationError(
                f"Label {label!r} is not possible; expected letters, digits, '.', '_' and '-' after a letter, and not "
                "the word latest."
            )
    text = json.dumps(dict(sorted(labels.items())), indent=2) + "\n"
    if isinstance(model_dir, RemotePath):
        (model_dir / LABELS_NAME).write_bytes(text.encode())
        return
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{LABELS_NAME}-", dir=model_dir)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp makes it private; servers often run as another user.
            os.chmod(name, 0o644)
            os.replace(name, model_dir / LABELS_NAME)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as exc:
        raise PublishError(f"Cannot write {model_dir / LABELS_NAME}: {exc}") from exc
