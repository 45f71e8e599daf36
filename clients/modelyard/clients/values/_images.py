"""Images and files that callers give where a signature takes bytes."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from modelyard.errors import InvalidInputError


def read_bytes(value: Any) -> Any:
    """Turns a file path or a PIL image into bytes, and leaves everything else alone.

    Text stays text: only path objects (``pathlib.Path``) are paths. A PIL image is written as PNG, which loses nothing.
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


def is_image(value: object) -> bool:
    """Whether a value is a PIL image; PIL itself is no dependency."""
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(value).__mro__)


def has_files(value: object) -> bool:
    """Whether a value is a file path or a PIL image, or a list of them."""
    if isinstance(value, (list, tuple)):
        return any(has_files(item) for item in value)
    return isinstance(value, os.PathLike) or is_image(value)


def read_all(value: object) -> object:
    """:func:`read_bytes` for every element of nested lists."""
    return [read_all(item) for item in value] if isinstance(value, (list, tuple)) else read_bytes(value)
