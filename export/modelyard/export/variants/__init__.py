"""Files of lower precision, and what they may cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.lazy import attach

if TYPE_CHECKING:
    from modelyard.export.variants._budget import accuracy_drop, check_budget
    from modelyard.export.variants._calibration import Calibration, make_calibration
    from modelyard.export.variants._quantize import OnnxVariant
    from modelyard.export.variants._sensitivity import Layer, Variant, fewest, group_layers, most_tries, rank_layers

__all__ = [
    "Calibration",
    "Layer",
    "OnnxVariant",
    "Variant",
    "accuracy_drop",
    "check_budget",
    "fewest",
    "group_layers",
    "make_calibration",
    "most_tries",
    "rank_layers",
]

__getattr__, __dir__ = attach(__name__, extra="export")
