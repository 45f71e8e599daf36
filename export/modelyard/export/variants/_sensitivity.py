"""Which layers a variant leaves in float32: those that cost most when they alone are of lower precision.

Every layer is converted alone, which says how much of the error is its own.
The costliest are left in float32, in their order, as few as the budget needs.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from modelyard.artifact import FloatLayer
from modelyard.errors import ConversionError, VerificationError
from modelyard.export.publish import ExportEvent, Progress
from modelyard.export.runtimes import Arrays, Runtime, load_runtime, run_graph
from modelyard.export.variants._calibration import Calibration

#: Layers that are measured apart; of more, neighbours are measured together.
MOST_LAYERS = 64
_BATCH_SIZE = 8
_BATCHES = 4


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer with weights and what follows it, as far as the next one.

    Name and operator are those of its first operation, as the format calls them, and so are the nodes.
    """

    graph: str
    name: str
    operator: str
    nodes: tuple[str, ...]


class Variant(Protocol):
    """A format in a lower precision, of which layers can be left in float32."""

    format: str
    precision: str

    @property
    def layers(self) -> Sequence[Layer]:
        """Those that can be left, in the order of computing."""

    def write(self, directory: Path, keep: Collection[Layer], *, only: str | None = None) -> None:
        """Writes the variant below a version directory."""


def group_layers(graph: str, nodes: Iterable[tuple[str, str]], weighted: Collection[str]) -> list[Layer]:
    """Divides a graph into layers."""
    groups: list[list[tuple[str, str]]] = []
    for name, operator in nodes:
        if not groups or operator in weighted:
            groups.append([])
        groups[-1].append((name, operator))
    size = math.ceil(len(groups) / MOST_LAYERS) or 1
    merged = [sum(groups[start : start + size], []) for start in range(0, len(groups), size)]
    return [
        Layer(graph=graph, name=each[0][0], operator=each[0][1], nodes=tuple(name for name, _ in each))
        for each in merged
    ]


def rank_layers(
    variant: Variant, exact: Runtime, calibration: Calibration, progress: Progress
) -> list[tuple[Layer, FloatLayer]]:
    """Measures what each layer costs when nothing else is converted."""
    found = []
    stage = f"sensitivity {variant.format}.{variant.precision}"
    wanted = {graph: list(_answers(exact, graph, calibration)) for graph in calibration.inputs}
    layers = [each for each in variant.layers if each.graph in wanted]
    for done, layer in enumerate(layers):
        error = _error_alone(variant, layer, calibration, wanted[layer.graph])
        # JSON has no word for an error without bound.
        share = error if math.isfinite(error) else None
        entry = FloatLayer(graph=layer.graph, layer=layer.name, operator=layer.operator, error=share)
        found.append((error, layer, entry))
        progress(ExportEvent(stage=stage, done=done + 1, total=len(layers)))
    found.sort(key=lambda each: -each[0])
    return [(layer, entry) for _, layer, entry in found]


def fewest(most: int, holds: Callable[[int], bool]) -> int | None:
    """The smallest number that holds, where 0 does not: by doubling it, and then by halves."""
    low, high = 0, 1
    while high <= most and not holds(high):
        low, high = high, min(2 * high, most) if high < most else most + 1
    if high > most:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def most_tries(most: int) -> int:
    """How often :func:`fewest` tries at most."""
    return 2 * max(most, 1).bit_length()


def _error_alone(variant: Variant, layer: Layer, calibration: Calibration, wanted: Sequence[Arrays]) -> float:
    others = [each for each in variant.layers if each is not layer]
    with tempfile.TemporaryDirectory() as folder:
        try:
            variant.write(Path(folder), others, only=layer.graph)
            runtime = load_runtime(variant.format, Path(folder), precision=variant.precision, graphs=[layer.graph])
            answers = list(_answers(runtime, layer.graph, calibration))
        except (ConversionError, VerificationError):
            # What cannot even be run with it is what has to stay as it was.
            return math.inf
    return max(_distance(wanted, answers, name) for name in wanted[0])


def _answers(runtime: Runtime, graph: str, calibration: Calibration) -> Iterator[Arrays]:
    for index, batch in enumerate(calibration.examples(graph, _BATCH_SIZE)):
        if index == _BATCHES:
            return
        yield run_graph(runtime, graph, batch)


def _distance(wanted: Sequence[Arrays], answers: Sequence[Arrays], name: str) -> float:
    """The error of an output as a share of how far it spreads; of what is no float, the share that changed."""
    ours = np.concatenate([each[name].ravel() for each in wanted])
    theirs = np.concatenate([each[name].ravel() for each in answers])
    if ours.dtype.kind != "f":
        return float((ours != theirs).mean())
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(ours)
    if not np.isfinite(theirs[finite]).all():
        return math.inf
    error = np.sqrt(np.mean((theirs - ours)[finite] ** 2)) if finite.any() else 0.0
    return float(error / (np.std(ours[finite]) or 1.0)) if error else 0.0
