"""Graphs that prepare themselves for each shape, as convolutions do on a card, compute batches of a few sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from modelyard.artifact import TensorSpec
from modelyard.serving.batching import in_few_sizes
from modelyard.serving.servables import Servable
from tests.support.doubler import Doubler, servable


class Convolution(Doubler):
    few_shapes = frozenset({"g"})


def ask(loaded: Servable, *values: float) -> list[float]:
    answer: list[float] = loaded.compute("g", {"x": np.asarray(values, np.float32)}, ["y"])["y"].tolist()
    return answer


@pytest.mark.parametrize(("most", "sizes"), [(8, [1, 2, 4, 8]), (5, [1, 2, 4, 8]), (1, [1])])
def test_each_size_is_computed_before_the_first_request(most: int, sizes: list[int]) -> None:
    model = Convolution()
    in_few_sizes(servable(model), most)
    assert [len(batch) for batch in model.batches] == sizes


def test_batches_are_filled_with_their_first_row_to_the_next_size() -> None:
    model = Convolution()
    loaded = in_few_sizes(servable(model), 4)
    model.batches.clear()
    assert ask(loaded, 1, 2, 3) == [2, 4, 6]
    assert ask(loaded, 5) == [10]
    # What is larger than the largest size takes several batches.
    assert ask(loaded, *range(9)) == [2 * x for x in range(9)]
    assert ask(loaded) == []
    assert model.batches == [[1, 2, 3, 1], [5], [0, 1, 2, 3], [4, 5, 6, 7], [8], []]


def test_rows_that_depend_on_each_other_stay_as_they_are() -> None:
    for model, row_wise in ((Convolution(), False), (Doubler(), True)):
        loaded = servable(model, row_wise=row_wise)
        assert in_few_sizes(loaded, 8) is loaded
        assert model.batches == []


def test_open_inner_sizes_are_not_prepared() -> None:
    model = Convolution()
    spec = TensorSpec(name="x", dtype="float32", shape=(-1, -1))
    model.signature = replace(model.signature, inputs=(spec,))
    loaded = in_few_sizes(servable(model), 8)
    assert model.batches == []
    x = np.ones((3, 2), np.float32)
    assert loaded.compute("g", {"x": x}, ["y"])["y"].tolist() == (2 * x).tolist()
    assert len(model.batches[0]) == 4
