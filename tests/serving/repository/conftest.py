"""What tests of the repository share."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelyard.artifact import RemotePath
from tests.support.models import publish_affine


@pytest.fixture
def store(tmp_path: Path) -> RemotePath:
    """A model in an object store, with one version."""
    place = RemotePath(f"memory://{tmp_path.name}/m")
    publish_affine(place, slope=1.0, intercept=0.0)
    return place
