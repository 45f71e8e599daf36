"""What a kind is, and the pieces that their builders share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

Rng = np.random.Generator
Array = npt.NDArray[Any]
#: The examples of one call: an array for a model of one input, else arrays by name.
Sample = Callable[[Rng, int], Any]

_KINDS: dict[str, Kind] = {}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of model.

    Attributes:
        name: Its name.
        theme: The module that it is in.
        title: What it is, for the page.
        build: Makes the model: a Keras model, a ``tf.Module`` with one function
            that has an ``input_signature``, or the path of a SavedModel.
        sample: The examples of one call, with a random generator and a number of
            rows. Dynamic lengths differ from call to call.
        batch: The first dimension of all inputs is the batch. Otherwise an example
            is what one call takes, whose rows ``sample`` may choose itself.
        suffix: The model is given as a file of this kind, such as ``.keras``.
        signatures: Inputs of a Keras model that does not know them.
        options: Options of the export that this kind needs, by name.
        stochastic: Outputs that are drawn at random; compared in distribution.
        tolerance: Largest error, as a share of the spread, or of 1 for a smaller one.
        needs: Modules without which it is skipped.
        parse: Makes arrays of serialized inputs, for artefacts that begin behind
            the step that parses them.
    """

    name: str
    theme: str
    title: str
    build: Callable[[], Any]
    sample: Sample
    batch: bool = True
    suffix: str = ""
    signatures: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    stochastic: tuple[str, ...] = ()
    tolerance: float = 1e-4
    needs: tuple[str, ...] = ()
    parse: Callable[[Any], dict[str, Array]] | None = None


def kind(sample: Sample, **settings: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Registers a builder; its docstring is the kind's title.

    Args:
        sample: Makes the examples of one call.
        **settings: Other attributes of :class:`Kind`.

    Returns:
        The decorator.
    """

    def register(build: Callable[[], Any]) -> Callable[[], Any]:
        theme = build.__module__.rpartition(".")[2]
        title = (build.__doc__ or "").strip().rstrip(".")
        name = build.__name__
        if name in _KINDS:
            raise ValueError(f"There are two kinds {name!r}.")
        _KINDS[name] = Kind(name=name, theme=theme, title=title, build=build, sample=sample, **settings)
        return build

    return register


def registered() -> dict[str, Kind]:
    """The kinds of the modules that were imported."""
    return dict(_KINDS)


def floats(*shape: int) -> Sample:
    """A sampler of normal numbers, float32 [n, *shape]."""
    return lambda rng, n: rng.normal(size=(n, *shape)).astype(np.float32)


def integers(high: int, *shape: int, low: int = 0, dtype: Any = np.int32) -> Sample:
    """A sampler of integers from ``low`` to ``high``, without it."""
    return lambda rng, n: rng.integers(low, high, (n, *shape)).astype(dtype)


def texts(*values: str, shape: tuple[int, ...] = ()) -> Sample:
    """A sampler of some texts."""
    return lambda rng, n: strings(rng.choice(np.array(values, object), (n, *shape)))


def named(**samples: Sample) -> Sample:
    """A sampler of several inputs."""
    return lambda rng, n: {name: sample(rng, n) for name, sample in samples.items()}


def strings(values: Any) -> Array:
    """Bytes in an array of objects."""
    return np.vectorize(lambda value: str(value).encode(), otypes=[object])(values)


def spec(*shape: int | None, dtype: Any = tf.float32) -> Any:
    """What an argument is."""
    return tf.TensorSpec(shape, dtype)


def weights(*shape: int) -> Any:
    """A variable of normal numbers, the same in every process."""
    return tf.Variable(np.random.default_rng(shape).normal(size=shape).astype(np.float32))


def module(function: Callable[..., Any], *specs: Any, **tracked: Any) -> Any:
    """A ``tf.Module`` with one function.

    Args:
        function: Its parameters are the inputs.
        *specs: What they are.
        **tracked: What it uses: variables, tables.

    Returns:
        The module; the function is its ``serve``.
    """
    root = tf.Module()
    root.tracked = tracked
    root.serve = tf.function(function, input_signature=specs)
    return root
