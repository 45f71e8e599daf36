"""Names of inputs and outputs in nested structures, and inputs as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from modelyard.artifact import TensorSpec
from modelyard.errors import ConfigurationError, ManifestError

INPUT_FORM = "NAME:DTYPE[SHAPE], such as x:float32[-1,28,28]"
_INPUT = re.compile(r"([^:\[\]]+):([^:\[\]]+)\[([^\[\]]*)\]")


def is_input(text: str) -> bool:
    """Whether a text describes an input, and is no name of a signature."""
    return _INPUT.fullmatch(text) is not None


def parse_input(text: str) -> TensorSpec:
    """An input from ``NAME:DTYPE[SHAPE]``."""
    match = _INPUT.fullmatch(text)
    expected = f"expected {INPUT_FORM}, where -1 is any size"
    try:
        if match is None:
            raise ValueError(text)
        name, dtype, sizes = match.groups()
        shape = tuple(-1 if size.strip() == "None" else int(size) for size in sizes.split(",") if sizes.strip())
        spec = TensorSpec(name=name.strip(), dtype=dtype.strip(), shape=shape)
    except ManifestError as exc:
        raise ConfigurationError(f"Received --signature {text}. {exc.message}") from exc
    except ValueError as exc:
        raise ConfigurationError(f"Received --signature {text}; {expected}.") from exc
    return spec


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with a number behind those that another one has already."""
    found: list[str] = []
    for name in names:
        candidate, number = name, 0
        # Never a name that another one had from the start.
        while candidate in found or (number and candidate in names):
            number += 1
            candidate = f"{name}_{number}"
        found.append(candidate)
    return found


def named_outputs(result: object, names: Sequence[str] = ()) -> dict[str, Any]:
    """Every tensor of a result under a name of its own."""
    if isinstance(result, Mapping):
        leaves = [leaf for key, value in result.items() for leaf in _leaves(str(key), value)]
    else:
        leaves = _leaves("output", result if isinstance(result, (list, tuple)) else [result])
        # Keras takes what is below a dictionary by sorted keys.
        values = keras.tree.flatten(result)
        if len(names) == len(values):
            leaves = list(zip(names, values, strict=True))
    return dict(zip(distinct([name for name, _ in leaves]), (value for _, value in leaves), strict=True))


def _leaves(prefix: str, value: object) -> list[tuple[str, object]]:
    if isinstance(value, Mapping):
        return [leaf for key, each in value.items() for leaf in _leaves(f"{prefix}_{key}", each)]
    if isinstance(value, (list, tuple)):
        return [leaf for index, each in enumerate(value) for leaf in _leaves(f"{prefix}_{index}", each)]
    return [(prefix, value)]
