"""What serves both ports: what was asked for, and what is there."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from modelyard.serving import parse_flags
from tests.support.models import publish_affine
from tests.support.server import run_to_end, without

BASE = "--model_base_path=/models/m"


def test_the_native_core_serves_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "modelyard_core.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    given: list[list[str]] = [[], ["--transport=native"], ["--transport=python"]]
    assert [parse_flags([BASE, *flags]).transport for flags in given] == ["native", "native", "python"]


def test_the_native_core_is_never_replaced_in_silence(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    code, log = run_to_end(
        f"--model_base_path={tmp_path / 'affine'}",
        "--transport=native",
        env=without(tmp_path / "site", "modelyard_core"),
    )
    assert code == 2 and "Traceback" not in log
    assert "build it with make install, which needs Rust, or use --transport=python" in log


def test_a_default_that_is_not_installed_is_replaced_with_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "modelyard_core", None)
    with caplog.at_level(logging.WARNING, logger="modelyard.serving"):
        assert parse_flags([BASE]).transport == "python"
    assert [record.getMessage() for record in caplog.records] == [
        "modelyard_core is not installed: uvicorn and grpc.aio serve (--transport=python), which is slower"
    ]
