"""Checkpoints: written, found, restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.lazy import load_attribute

if TYPE_CHECKING:
    from modelyard.training.checkpoint._checkpoints import (
        Checkpoints,
        RunState,
        find_checkpoint,
        list_checkpoints,
        list_variables,
        list_weights,
        read_state,
        restore_models,
    )

_MODULES = {
    "Checkpoints": "modelyard.training.checkpoint._checkpoints",
    "RunState": "modelyard.training.checkpoint._checkpoints",
    "find_checkpoint": "modelyard.training.checkpoint._checkpoints",
    "list_checkpoints": "modelyard.training.checkpoint._checkpoints",
    "list_variables": "modelyard.training.checkpoint._checkpoints",
    "list_weights": "modelyard.training.checkpoint._checkpoints",
    "read_state": "modelyard.training.checkpoint._checkpoints",
    "restore_models": "modelyard.training.checkpoint._checkpoints",
}

__all__ = [
    "Checkpoints",
    "RunState",
    "find_checkpoint",
    "list_checkpoints",
    "list_variables",
    "list_weights",
    "read_state",
    "restore_models",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _MODULES, name, extra="training")
