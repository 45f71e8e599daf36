"""What a package that comes with an extra says where it is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from modelyard.errors import MissingDependencyError
from modelyard.lazy import needs_extra


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with (
        pytest.raises(MissingDependencyError, match=r"^Drawing needs the package 'PIL'.*'modelyard\[serving\]'"),
        needs_extra("serving", "PIL", purpose="Drawing"),
    ):
        from PIL import Image  # noqa: F401


def test_what_an_installed_package_lacks_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "modelyard_half_installed.py").write_text("import modelyard_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with (
        pytest.raises(ModuleNotFoundError, match="modelyard_not_there"),
        needs_extra("serving", "modelyard_half_installed", purpose="Drawing"),
    ):
        import modelyard_half_installed  # type: ignore[import-not-found]  # noqa: F401
