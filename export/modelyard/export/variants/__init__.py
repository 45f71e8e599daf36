"""Files of lower precision, and what they may cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.lazy import load_attribute

if TYPE_CHECKING:
    from modelyard.export.variants._budget import accuracy_drop, check_budget
    from modelyard.export.variants._calibration import Calibration, make_calibration
    from modelyard.export.variants._quantize import OnnxVariant
    from modelyard.export.variants._sensitivity import Layer, Variant, fewest, group_layers, most_tries, rank_layers

_MODULES = {
    "Calibration": "modelyard.export.variants._calibration",
    "Layer": "modelyard.export.variants._sensitivity",
    "OnnxVariant": "modelyard.export.variants._quantize",
    "Variant": "modelyard.export.variants._sensitivity",
    "accuracy_drop": "modelyard.export.variants._budget",
    "check_budget": "modelyard.export.variants._budget",
    "fewest": "modelyard.export.variants._sensitivity",
    "group_layers": "modelyard.export.variants._sensitivity",
    "make_calibration": "modelyard.export.variants._calibration",
    "most_tries": "modelyard.export.variants._sensitivity",
    "rank_layers": "modelyard.export.variants._sensitivity",
}

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


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _MODULES, name, extra="export")
