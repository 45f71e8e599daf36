"""Version labels, kept beside the versions in ``<repository>/<model>/labels.json``.

The file is a JSON object from label to version. It is replaced as a whole, so
that a reader sees the old labels or the new ones and nothing between.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from modelyard.artifact._remote import Location, RemotePath, read_file, replace_file
from modelyard.errors import ConfigurationError, ManifestError

LABELS_NAME = "labels.json"
_MAX_BYTES = 1 << 20
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
#: Words that name a version in another way.
_TAKEN = frozenset({"latest"})


@contextmanager
def one_at_a_time(model_dir: Location) -> Iterator[None]:
    """Lets one process of a file system change labels, and what they name; object stores and Windows have no locks."""
    if isinstance(model_dir, RemotePath) or not model_dir.is_dir() or sys.platform == "win32":
        yield
        return
    import fcntl

    descriptor = os.open(model_dir, os.O_RDONLY)
    try:
        # Some network file systems lock no folders: there, the last writer wins.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_labels(model_dir: Location) -> dict[str, int]:
    """Versions by label of a model, ``<repository>/<model>``; nothing where there is no file.

    Raises:
        ArtifactError: The store that holds it cannot be reached.
        ManifestError: The file is not what it must be.
    """
    path = model_dir / LABELS_NAME
    try:
        document = json.loads(read_file(path, _MAX_BYTES).decode("utf-8"))
        # JSON can spell half a surrogate pair, which no request can.
        json.dumps(document, ensure_ascii=False).encode()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as exc:
        raise ManifestError(f"{path} cannot be read: {exc}") from exc
    if not isinstance(document, dict) or not all(
        type(number) is int and 0 <= number < 1 << 63 for number in document.values()
    ):
        raise ManifestError(f"{path} is not a JSON object from label to version number.")
    return document


def write_labels(model_dir: Location, labels: Mapping[str, int]) -> None:
    """Replaces the labels of a model, ``<repository>/<model>``, by versions by label.

    Raises:
        ArtifactError: The store that holds it cannot be reached, or refuses.
        ConfigurationError: A label is no plain word that starts with a letter, or is ``latest``.
        PublishError: The file cannot be written.
    """
    for label in labels:
        check_label(label)
    replace_labels(model_dir, labels)


def check_label(label: str) -> None:
    """Checks that a label can be given."""
    if not _LABEL.fullmatch(label) or label in _TAKEN:
        raise ConfigurationError(
            f"Label {label!r} is not possible; expected letters, digits, '.', '_' and '-' after a letter, and not the "
            "word latest."
        )


def replace_labels(model_dir: Location, labels: Mapping[str, int]) -> None:
    """As :func:`write_labels`, also of labels that somebody else's tool has written."""
    text = json.dumps(dict(sorted(labels.items())), indent=2) + "\n"
    replace_file(model_dir / LABELS_NAME, text.encode())
