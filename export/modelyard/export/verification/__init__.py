"""Formats in their own runtimes, held to the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.lazy import load_attribute

if TYPE_CHECKING:
    from modelyard.export.verification._compare import WORST_EXAMPLES
    from modelyard.export.verification._distribution import take_draws
    from modelyard.export.verification._verification import ERROR_EDGES, Verification, WorstExample
    from modelyard.export.verification._verify import verify

_MODULES = {
    "ERROR_EDGES": "modelyard.export.verification._verification",
    "Verification": "modelyard.export.verification._verification",
    "WORST_EXAMPLES": "modelyard.export.verification._compare",
    "WorstExample": "modelyard.export.verification._verification",
    "take_draws": "modelyard.export.verification._distribution",
    "verify": "modelyard.export.verification._verify",
}

__all__ = [
    "ERROR_EDGES",
    "Verification",
    "WORST_EXAMPLES",
    "WorstExample",
    "take_draws",
    "verify",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _MODULES, name, extra="export")
