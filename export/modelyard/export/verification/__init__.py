"""Formats in their own runtimes, held to the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.lazy import attach

if TYPE_CHECKING:
    from modelyard.export.verification._compare import WORST_EXAMPLES
    from modelyard.export.verification._distribution import take_draws
    from modelyard.export.verification._verification import ERROR_EDGES, Verification, WorstExample
    from modelyard.export.verification._verify import verify

__all__ = [
    "ERROR_EDGES",
    "Verification",
    "WORST_EXAMPLES",
    "WorstExample",
    "take_draws",
    "verify",
]

__getattr__, __dir__ = attach(__name__, extra="export")
