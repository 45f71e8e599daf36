"""A prediction is a read-only mapping that says where it came from."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from modelyard.clients import Prediction


def make() -> Prediction:
    return Prediction(outputs={"a": np.arange(3), "b": np.zeros((2, 2))}, model="m", version=3, signature="s")


def test_is_a_mapping() -> None:
    prediction = make()
    assert (len(prediction), list(prediction), "a" in prediction, "c" in prediction) == (2, ["a", "b"], True, False)
    np.testing.assert_array_equal(prediction["a"], [0, 1, 2])
    assert prediction.get("c") is None
    assert dict(prediction).keys() == {"a", "b"}


def test_unknown_output_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="No output 'c'; this prediction has a, b"):
        make()["c"]


def test_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().model = "other"  # type: ignore[misc]


def test_equality_is_identity_and_hashable() -> None:
    prediction = make()
    assert prediction == prediction
    assert prediction != make()
    assert len({prediction, prediction}) == 1


def test_repr_shows_shapes_not_values() -> None:
    assert repr(make()) == "Prediction(model='m', version=3, signature='s', {a: int64[3], b: float64[2, 2]})"


def test_travels_between_processes() -> None:
    copy = pickle.loads(pickle.dumps(make()))
    assert (copy.model, copy.version, copy["a"].tolist()) == ("m", 3, [0, 1, 2])
