"""What every test of the server's packages has."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_full_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that are unloaded in this process have it look for no garbage.

    It would look at all that other tests have imported, TensorFlow among it, a second for each model. That memory comes
    back is shown by ``runtime/test_memory.py``, in processes of their own.
    """
    monkeypatch.setattr("modelyard.serving.servables._servable.release_memory", lambda: None)
