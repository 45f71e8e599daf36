"""Servers that the contract tests speak to, as strangers would: by the official stubs and by plain HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.models import save_half_plus_two
from tests.support.server import RunningServer, serve


@pytest.fixture(scope="session")
def half_server(session_dir: Path) -> Iterator[RunningServer]:
    """A raw SavedModel with several signatures, in the TensorFlow backend."""
    base_path = session_dir / "half"
    save_half_plus_two(base_path / "7")
    with serve(base_path, model="half", log_dir=session_dir) as server:
        yield server


@pytest.fixture(scope="session")
def half_channel(half_server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(half_server.grpc_address) as channel:
        yield channel


@pytest.fixture(scope="session")
def foreign_models() -> Path:
    folder = os.environ.get("MODELYARD_FOREIGN_MODELS")
    if not folder:
        pytest.skip("MODELYARD_FOREIGN_MODELS names no folder of foreign SavedModels")
    return Path(folder)
