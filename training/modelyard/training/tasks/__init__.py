"""Tasks that modelyard brings along, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.training._lazy import load_attribute
from modelyard.training.tasks._registry import find_task, tasks

if TYPE_CHECKING:
    from modelyard.training.tasks._fashion import FashionTask

_LAZY = {"FashionTask": "modelyard.training.tasks._fashion"}

__all__ = ["FashionTask", "find_task", "tasks"]


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _LAZY, name)
