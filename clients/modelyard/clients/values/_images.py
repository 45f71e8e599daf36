"""Images and files that callers give where a signature takes bytes."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from modelyard.errors import InvalidInputError


def read_bytes(value: Any) -> Any:
    """Turns a file path or a PIL image into bytes, and leaves everything else alone.

    Text stays text: only path objects (``pathlib.Path``) are paths. A PIL image
    is written as PNG, which loses nothing.

    Args:
        value: One element of an input.

    Raises:
        InvalidInputError: The file cannot be read, or the image cannot be written.
    """
    if isinstance(value, os.PathLike):
        try:
            return Path(value).read_bytes()
        except OSError as exc:
            raise InvalidInputError(f"the file {os.fspath(value)!r} cannot be read: {exc.strerror}.") from exc
    if is_image(value):
        data = io.BytesIO()
        try:
            value.save(data, format="PNG")
        except (OSError, ValueError) as exc:
            raise InvalidInputError(f"the image cannot be written as PNG: {exc}.") from exc
        return data.getvalue()
    return value


def is_image(value: Any) -> bool:
    """Whether a value is a PIL image; PIL itself is no dependency.

    Args:
        value: Anything.
    """
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(value).__mro__)


def has_files(value: Any) -> bool:
    """Whether a value is a file path or a PIL image, or a list of them.

    Args:
        value: An input.
    """
    if isinstance(value, (list, tuple)):
        return any(has_files(item) for item in value)
    return isinstance(value, os.PathLike) or is_image(value)


def read_all(value: Any) -> Any:
    """:func:`read_bytes` for every element of nested lists.

    Args:
        value: An input.

    Raises:
        InvalidInputError: As :func:`read_bytes`.
    """
    return [read_all(item) for item in value] if isinstance(value, (list, tuple)) else read_bytes(value)
