"""Examples by name: the same rule for a file of arrays and for a dictionary of Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from modelyard.artifact import DEFAULT_SIGNATURE, Signature, VerificationData
from modelyard.errors import ConfigurationError
from modelyard.export.sources._lengths import by_shape

_LABELS = "labels"


def name_arrays(
    data: Mapping[str, Any], signatures: Mapping[str, Signature], description: str = ""
) -> VerificationData:
    """Arrays or lists called ``INPUT``, ``SIGNATURE/INPUT`` or ``labels``, of a file or of Python.

    Raises:
        ConfigurationError: There is none for an input, or one that is for nothing; or something else than an array.
    """
    arrays: dict[str, Any] = {}
    for key, value in data.items():
        group = {f"{key}/{name}": each for name, each in value.items()} if isinstance(value, Mapping) else {key: value}
        arrays.update(group)
    for key, value in arrays.items():
        # Of numpy's arrays those of a single value have a length that is none.
        if not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0:
            raise ConfigurationError(
                f"The data's {key!r} is a {type(value).__name__}; expected an array, or a list with an example in each "
                "place. What there is none of is left out."
            )
    inputs: dict[str, dict[str, Any]] = {}
    known: set[str] = set()
    for name, signature in signatures.items():
        for spec in signature.inputs:
            keys = (f"{name}/{spec.name}", spec.name)
            known.update(keys)
            if found := [key for key in keys if key in arrays]:
                inputs.setdefault(name, {})[spec.name] = arrays[found[0]]
    # An input of that name is none of the labels.
    labels = {key: arrays[key] for key in {_LABELS} - known if key in arrays}
    unknown = sorted(arrays.keys() - known - labels.keys())
    if unknown or not inputs:
        raise ConfigurationError(
            f"The data {description or 'given'} has {unknown or sorted(arrays)}; expected arrays by name, some "
            f"of {list_inputs(signatures)}, and {_LABELS!r} for class ids. Rename the arrays, or leave them out."
        )
    # Labels are sorted along where examples have several sizes.
    groups = {name: by_shape({**each, **labels}) for name, each in inputs.items()}
    first = groups.get(DEFAULT_SIGNATURE, next(iter(groups.values())))[0]
    ids = np.asarray(first[_LABELS]) if labels else None
    only = {
        name: [{key: values for key, values in group.items() if key not in labels} for group in each]
        for name, each in groups.items()
    }
    return VerificationData(
        inputs={name: each[0] for name, each in only.items()},
        labels=ids.astype(np.int64) if ids is not None and ids.dtype.kind in "iu" else ids,
        others={name: each[1:] for name, each in only.items() if each[1:]},
        description=description,
    )


def list_inputs(signatures: Mapping[str, Signature]) -> str:
    """The inputs with dtype and shape, for messages."""
    specs = dict.fromkeys(spec for signature in signatures.values() for spec in signature.inputs)
    return ", ".join(repr(spec.name) + (f" ({spec.dtype} {list(spec.shape)})" if spec.shape else "") for spec in specs)
