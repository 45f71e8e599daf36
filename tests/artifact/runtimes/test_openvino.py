from __future__ import annotations

import sys

import pytest

from modelyard.artifact.runtimes import openvino_core


def test_a_process_has_one_core() -> None:
    assert openvino_core() is openvino_core()


def test_without_openvino_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    # What a process has already, it keeps.
    with pytest.raises(ModuleNotFoundError, match="openvino"):
        openvino_core.__wrapped__()
