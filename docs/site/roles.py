"""Docstrings name other objects as Sphinx does, which Markdown does not know."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:py:)?\w+:`~?([^`]+)`")


class Roles(griffe.Extension):
    """Has ``:class:`Name``` read as the plain name."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes an object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
