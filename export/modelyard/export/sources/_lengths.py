"""Examples of other lengths: a free axis is verified at more than the one size that the data has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import Signature
from modelyard.errors import ConfigurationError

Arrays = Mapping[str, npt.NDArray[np.generic]]

#: Examples of another length: fewer than of the first, which has its own checks.
_COUNT = 32
#: Free axes of random examples, in the order in which they are tried: of sentences, of small images, of deep networks
#: over images, of networks that take steps, of sound.
RANDOM_SIZES = (12, 32, 64, 128, 1, 1024, 16000)
#: Networks that halve their input take multiples only, and the larger one is the surer one.
_MULTIPLES = (1, 2, 4, 8, 16, 32, 64)


def free_axes(signature: Signature) -> dict[str, tuple[int, ...]]:
    """The axes of examples whose size is free, other than the one that counts them, by input that has some."""
    # Of whole calls, examples have a dimension more.
    more = int(signature.unbatched)
    found = {
        spec.name: tuple(axis + more for axis, size in enumerate(spec.shape or ()) if axis + more and size < 0)
        for spec in signature.inputs
    }
    return {name: axes for name, axes in found.items() if axes}


def random_shapes(signature: Signature, count: int) -> Iterator[dict[str, tuple[int, ...]]]:
    """Shapes for random examples: free axes of one input differ first, then they are alike."""
    free = any(free_axes(signature).values())
    for size in RANDOM_SIZES if free else (1,):
        for step in (size // 2, 0) if free else (0,):
            yield {
                spec.name: (
                    count,
                    *(
                        size + step * (axis - 1) if known < 0 else known
                        for axis, known in enumerate(spec.shape or ())
                        if axis
                    ),
                )
                for spec in signature.inputs
            }


def other_length(signature: Signature, inputs: Arrays, accepts: Callable[[Arrays], bool]) -> Arrays | None:
    """Some of the examples, shorter along every free axis, or longer where there is nothing to cut."""
    axes = free_axes(signature)
    some = {name: values[-_COUNT:] for name, values in inputs.items()}
    tried: set[tuple[tuple[int, ...], ...]] = set()
    for part in (0.7, 0.5, 0.25, 0.9):
        for multiple in _MULTIPLES:
            found = {
                name: _resized(values, axes.get(name, ()), part, multiple) if name in axes else values
                for name, values in some.items()
            }
            shapes = tuple(values.shape for values in found.values())
            changed = all(
                found[name].shape[axis] != some[name].shape[axis] for name, free in axes.items() for axis in free
            )
            if not axes or not changed or shapes in tried:
                continue
            tried.add(shapes)
            if accepts({name: values[:1] for name, values in found.items()}) and accepts(found):
                return found
    return None


def by_shape(inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Examples in groups of one shape, the largest group first."""
    shapes = {name: [np.shape(each) for each in values] for name, values in inputs.items() if isinstance(values, list)}
    ragged = {name: each for name, each in shapes.items() if len(set(each)) > 1}
    if not ragged:
        return [dict(inputs)]
    counts = {name: len(values) for name, values in inputs.items()}
    if len(set(counts.values())) > 1:
        raise ConfigurationError(f"The inputs have {counts} examples; expected as many for each.")
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, key in enumerate(zip(*ragged.values(), strict=True)):
        groups.setdefault(key, []).append(index)
    found = sorted(groups.values(), key=len, reverse=True)
    return [
        {
            name: np.stack([values[index] for index in rows]) if isinstance(values, list) else np.asarray(values)[rows]
            for name, values in inputs.items()
        }
        for rows in found
    ]


def _resized(
    values: npt.NDArray[np.generic], axes: tuple[int, ...], part: float, multiple: int
) -> npt.NDArray[np.generic]:
    for axis in axes:
        size = values.shape[axis]
        wanted = int(size * part) // multiple * multiple
        # Of one step nothing is left to cut.
        wanted = wanted or size + multiple
        values = np.take(values, np.arange(wanted) % max(size, 1), axis=axis) if size else values
    return values
