"""What a step of a program chooses, and what it is given."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

T = TypeVar("T")


class Draw:
    """Choices that are the same again for the same seed, whatever the size of the batch."""

    def __init__(self, seed: int, layers: list[keras.Layer]) -> None:
        self._random, self._layers = random.Random(seed), layers

    def whole(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self._random.randint(low, high)

    def one(self, *options: T) -> T:
        """One of several."""
        return self._random.choice(options)

    def yes(self) -> bool:
        """True or false."""
        return self._random.random() < 0.5

    def axis(self, x: Any) -> int:
        """An axis but the batch's, counted from the front or from the end."""
        axis = self._random.randrange(1, len(x.shape))
        return axis if self.yes() else axis - len(x.shape)

    def order(self, x: Any) -> list[int]:
        """The axes in another order, the batch's first."""
        axes = list(range(1, len(x.shape)))
        self._random.shuffle(axes)
        return [0, *axes]

    def each(self, x: Any, choose: Callable[[int], T]) -> list[T]:
        """Something for the size of each axis but the batch's."""
        return [choose(size) for size in x.shape[1:]]

    def layer(self, made: Callable[[], keras.Layer], *inputs: Any) -> Any:
        """What a layer computes, which is made once, with weights that are not those of the start."""
        if self._layers:
            return self._layers[0](*inputs)
        self._layers.append(made())
        self._layers[0](*inputs)
        numbers = np.random.default_rng(self.whole(0, 999))
        for variable in self._layers[0].weights:
            if variable.dtype == "float32":
                values = numbers.normal(size=variable.shape) / 2
                variable.assign(np.abs(values) + 0.5 if "variance" in variable.name else values)
        return self._layers[0](*inputs)

    def weights(self, *shape: int) -> Any:
        """Numbers of a trained model, ``float32`` of a shape."""
        values = np.random.default_rng(self.whole(0, 999)).normal(size=shape)
        return tf.constant(values.round(3).astype(np.float32))

    def slices(self, x: Any) -> tuple[Any, ...]:
        """An index as people write it; nothing is ever left of no size."""
        found: list[Any] = [slice(None)]
        for size in x.shape[1:]:
            first = self.whole(0, size - 1)
            last = self.whole(first, size - 1) + 1
            found += self.one(
                [slice(None)],
                [first],
                [first - size],
                [slice(first, last)],
                [slice(first - size, None)],
                [slice(None, last)],
                [slice(first, last, 2)],
                [slice(None, None, -self.whole(1, 3))],
                [slice(last - 1, first - 1 if first else None, -1)],
                [None, slice(None)],
            )
        return tuple(found if self.yes() else [*found[: self.whole(1, len(found))], ...])


@dataclass(frozen=True)
class Step:
    """A step of a program.

    Attributes:
        kinds: For each tensor that it takes the kind of its dtype, as numpy has it, and the least rank: ``f2``; with
            ``=`` exactly that rank: ``f=4``.
        compute: The step, of its choices and those tensors.
    """

    kinds: Sequence[str]
    compute: Callable[..., Any]

    def takes(self, kind: str, x: Any) -> bool:
        """Whether a tensor is of a kind."""
        rank = len(x.shape)
        wanted = int(kind[-1])
        return np.dtype(x.dtype.as_numpy_dtype).kind in kind[0] and (rank == wanted if "=" in kind else rank >= wanted)


def step(kinds: str, compute: Callable[..., Any]) -> Step:
    """A step of kinds with blanks between them."""
    return Step(tuple(kinds.split()), compute)
