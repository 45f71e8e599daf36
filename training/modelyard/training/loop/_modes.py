"""How the steps of an epoch are run; all that differs between the values of ``loop=``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

LoopName = Literal["eager", "step", "loop", "epoch"]


@dataclass(frozen=True, kw_only=True)
class LoopMode:
    """One value of ``loop=``.

    Attributes:
        name: The value.
        summary: For ``--help``.
        compiled: Whether a step is a graph.
        device_loop: Whether many steps are one call of a compiled function; otherwise each is called from Python.
        resident: Whether the training data stays on the device, and a device loop is a whole epoch.
    """

    name: LoopName
    summary: str
    compiled: bool = True
    device_loop: bool = True
    resident: bool = False

    @property
    def for_evaluation(self) -> LoopMode:
        """The mode of evaluations: a device loop wherever steps are compiled, on data that is read each time."""
        return replace(self, device_loop=self.compiled, resident=False)


LOOP_MODES: dict[LoopName, LoopMode] = {
    mode.name: mode
    for mode in (
        LoopMode(name="eager", summary="no graph, for debugging", compiled=False, device_loop=False),
        LoopMode(name="step", summary="one compiled step at a time", device_loop=False),
        LoopMode(name="loop", summary="many"),
        LoopMode(name="epoch", summary="a whole epoch on data in memory, the fastest", resident=True),
    )
}
