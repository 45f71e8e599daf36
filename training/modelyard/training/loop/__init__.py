"""Many steps in one call of one compiled function, and the loop of those who write it themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.lazy import attach
from modelyard.training.loop._modes import LOOP_MODES, LoopMode, LoopName

if TYPE_CHECKING:
    from modelyard.training.loop._compiled_step import CompiledStep
    from modelyard.training.loop._ema import WeightAverage
    from modelyard.training.loop._loop import LOSS, DeviceLoop, Outcome, Totals, describe_shape, describe_spec
    from modelyard.training.loop._own_loop import Loop
    from modelyard.training.loop._resident import ResidentData, make_resident

__all__ = [
    "CompiledStep",
    "DeviceLoop",
    "LOOP_MODES",
    "LOSS",
    "Loop",
    "LoopMode",
    "LoopName",
    "Outcome",
    "ResidentData",
    "Totals",
    "WeightAverage",
    "describe_shape",
    "describe_spec",
    "make_resident",
]

__getattr__, __dir__ = attach(__name__, extra="training")
