"""Many steps in one call of one compiled function, and the loop of those who write it themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.lazy import load_attribute

if TYPE_CHECKING:
    from modelyard.training.loop._ema import WeightAverage
    from modelyard.training.loop._loop import LOSS, DeviceLoop, Totals, describe_shape, describe_spec
    from modelyard.training.loop._own_loop import CompiledStep, Loop
    from modelyard.training.loop._resident import ResidentData, make_resident

_MODULES = {
    "CompiledStep": "modelyard.training.loop._own_loop",
    "DeviceLoop": "modelyard.training.loop._loop",
    "LOSS": "modelyard.training.loop._loop",
    "Loop": "modelyard.training.loop._own_loop",
    "ResidentData": "modelyard.training.loop._resident",
    "Totals": "modelyard.training.loop._loop",
    "WeightAverage": "modelyard.training.loop._ema",
    "describe_shape": "modelyard.training.loop._loop",
    "describe_spec": "modelyard.training.loop._loop",
    "make_resident": "modelyard.training.loop._resident",
}

__all__ = [
    "CompiledStep",
    "DeviceLoop",
    "LOSS",
    "Loop",
    "ResidentData",
    "Totals",
    "WeightAverage",
    "describe_shape",
    "describe_spec",
    "make_resident",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _MODULES, name, extra="training")
