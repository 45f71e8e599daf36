"""The trained and exported fashion model, served; and a classifier that is wrong on purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from modelyard.training.data import FashionMnist, load_fashion_mnist
from tests.support.classifier import publish_classifier
from tests.support.server import RunningServer, serve


@pytest.fixture(scope="session")
def fashion() -> FashionMnist:
    return load_fashion_mnist(allow_download=False)


@pytest.fixture(scope="session")
def server(session_dir: Path, fashion_model_dir: Path) -> Iterator[RunningServer]:
    with serve(fashion_model_dir, model="fashion", log_dir=session_dir, poll_s=60) as running:
        yield running


@pytest.fixture
def wrong_server(tmp_path: Path, fashion: FashionMnist) -> Iterator[RunningServer]:
    """Consistent answers, wrong classes: only the accuracy tells."""
    shifted = dataclasses.replace(fashion, train_labels=(fashion.train_labels + np.uint8(1)) % np.uint8(10))
    publish_classifier(tmp_path / "fashion", shifted)
    with serve(tmp_path / "fashion", model="fashion", log_dir=tmp_path) as running:
        yield running
