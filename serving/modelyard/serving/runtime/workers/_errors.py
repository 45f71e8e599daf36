"""Errors on their way between processes."""

from __future__ import annotations

from typing import Any

from modelyard.errors import MissingDependencyError, ModelyardError, ServerError
from modelyard.wire import GRPC_STATUS

#: A missing dependency says more than a message; its parent's message is all that callers elsewhere need.
_KINDS = {kind.__name__: kind for kind in GRPC_STATUS if kind is not MissingDependencyError}


def error_to_json(error: ModelyardError) -> dict[str, str]:
    """An error as JSON.

    Args:
        error: The error.
    """
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS]
    return {"kind": kinds[0], "message": error.message}


def error_from_json(value: dict[str, Any]) -> ModelyardError:
    """The error that :func:`error_to_json` wrote.

    Args:
        value: What it wrote.
    """
    return _KINDS.get(value["kind"], ServerError)(value["message"])
