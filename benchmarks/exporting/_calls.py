"""What is asked and what is answered. Nothing of TensorFlow here: the judge of an ONNX or TFLite file needs none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What a model answers to one call.

    Attributes:
        arrays: In their order.
        names: The names that an artefact has to give them; empty where the model has none.
    """

    arrays: tuple[Array, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Call:
    """Inputs, and what the source answers to them.

    Attributes:
        inputs: By name; under an empty one where there is one input.
        outputs: What is right.
        draws: For a kind with random outputs, more answers to the same inputs.
        parsed: The inputs behind the step that parses them, where there is one.
    """

    inputs: Mapping[str, Array]
    outputs: Outputs
    draws: Sequence[Outputs] = ()
    parsed: Mapping[str, Array] = field(default_factory=dict)
