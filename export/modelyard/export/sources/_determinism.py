"""Sources with state or randomness: verification leaves their variables as they were, and refuses random outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from tensorflow.python.framework.auto_control_deps_utils import get_read_only_resource_input_indices_graph

from modelyard.export.rewrites import all_nodes
from modelyard.export.sources._unsafe_ops import reachable

if TYPE_CHECKING:
    from tensorflow.python.types.core import ConcreteFunction, PolymorphicFunction

_WRITES = ("Assign", "ResourceApply", "ResourceScatter", "ResourceStridedSliceAssign", "Rng", "StatefulRandom",
           "StatefulStandardNormal", "StatefulTruncatedNormal", "StatefulUniform")  # fmt: skip

_DRAWS = (
    "Multinomial", "Random", "StatefulRandom", "StatefulStandardNormal", "StatefulTruncatedNormal", "StatefulUniform",
    "StatelessMultinomial", "StatelessParameterized", "StatelessRandom", "StatelessTruncatedNormal", "TruncatedNormal",
)  # fmt: skip


@contextmanager
def restored(functions: Iterable[PolymorphicFunction]) -> Iterator[None]:
    """Restores on exit every variable of the functions that write to variables: counters, statistics, generators."""
    concrete = (getattr(each, "get_concrete_function", lambda each=each: each)() for each in functions)
    written = [each for each in concrete if _writes(each)]
    # Keyed by identity: signatures of one model share variables.
    variables = {id(variable): variable for each in written for variable in each.variables}
    values = {key: variable.read_value() for key, variable in variables.items()}
    try:
        yield
    finally:
        for key, variable in variables.items():
            variable.assign(values[key])


def written_variables(function: PolymorphicFunction) -> frozenset[int]:
    """Identities of the variables that a function writes to."""
    concrete = function.get_concrete_function()
    if not _writes(concrete):
        return frozenset()
    # TensorFlow notes with every call of a function which of its resources that only reads.
    read = {concrete.graph.inputs[index].name for index in get_read_only_resource_input_indices_graph(concrete.graph)}
    captures = zip(concrete.graph.external_captures, concrete.graph.internal_captures, strict=True)
    handles = {id(outside) for outside, inside in captures if inside.name not in read}
    return frozenset(id(variable) for variable in concrete.variables if id(variable.handle) in handles)


def differing(
    first: Mapping[str, npt.NDArray[Any]], second: Mapping[str, npt.NDArray[Any]], tolerance: float
) -> list[str]:
    """Names of the outputs of two calls that are not the same."""
    return sorted(name for name, values in first.items() if not _same(values, second[name], tolerance))


def draws(function: PolymorphicFunction) -> bool:
    """Whether the outputs of a function depend on random numbers, those of a generator with a state among them."""
    concrete = function.get_concrete_function()
    nodes = reachable(concrete.graph.as_graph_def(), [tensor.name for tensor in concrete.outputs])
    return any(is_draw(node.op) for node in nodes)


def is_draw(operation: str) -> bool:
    """Whether an operation draws random numbers."""
    return operation.startswith(_DRAWS)


def is_write(operation: str) -> bool:
    """Whether an operation writes to a variable."""
    return operation.startswith(_WRITES)


def _same(first: npt.NDArray[Any], second: npt.NDArray[Any], tolerance: float) -> bool:
    if first.shape != second.shape:
        return False
    if first.dtype.kind in "biuOSU":
        return bool((first == second).all())
    # bfloat16 is no dtype that numpy compares with a tolerance.
    wide = np.complex128 if first.dtype.kind == "c" else np.float64
    return bool(np.allclose(first.astype(wide), second.astype(wide), rtol=1e-4, atol=tolerance, equal_nan=True))


def _writes(concrete: ConcreteFunction) -> bool:
    return any(is_write(node.op) for node in all_nodes(concrete.graph.as_graph_def()))
