"""``modelyard train``, ``evaluate`` and ``infer``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.lazy import load_attribute

if TYPE_CHECKING:
    from modelyard.training.cli._cli import main
    from modelyard.training.cli._evaluate_cli import evaluate_main, infer_main

_MODULES = {
    "evaluate_main": "modelyard.training.cli._evaluate_cli",
    "infer_main": "modelyard.training.cli._evaluate_cli",
    "main": "modelyard.training.cli._cli",
}

__all__ = [
    "evaluate_main",
    "infer_main",
    "main",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _MODULES, name, extra="training")
