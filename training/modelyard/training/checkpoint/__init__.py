"""Checkpoints: written, found, restored."""

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
