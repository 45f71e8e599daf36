"""Fixtures of the tasks' tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from modelyard.training.tasks._frechet import FrechetDistance


@pytest.fixture(autouse=True, scope="session")
def one_measure_for_the_same_images() -> Iterator[None]:
    """Tasks with the same images share the network that measures theirs: trained again, it would be the same one."""
    made: dict[int, tuple[Any, FrechetDistance]] = {}

    def distance(data: Any) -> FrechetDistance:
        # With the images, whose id would go to others if they went.
        if id(data) not in made:
            made[id(data)] = (data, FrechetDistance(data))
        return made[id(data)][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("modelyard.training.tasks._adversarial.FrechetDistance", distance)
        yield
