"""What the tests of batch queues share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.doubler import Doubler


@pytest.fixture
def backend() -> Iterator[Doubler]:
    backend = Doubler()
    yield backend
    backend.gate.set()
