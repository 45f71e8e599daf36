"""Where copies of remote versions go, whatever a model is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelyard.serving.repository._cache import VersionCache

NAMES = ["plain", "../../up", "/absolute", "a/b", "a_b", "..", ".", "nul\0", "x" * 300, "x" * 301, "\udc80", "~plain"]


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "temporary"])
def test_each_model_has_a_folder_of_its_own_in_the_cache(
    tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    caches = [VersionCache(name, tmp_path if kept else None) for name in NAMES]
    roots = [cache._root() for cache in caches]
    assert len(set(roots)) == len(NAMES)
    for root in roots:
        root.mkdir(exist_ok=True)
        assert root.resolve().parent == tmp_path.resolve()
    assert len(list(tmp_path.iterdir())) == len(NAMES)
    assert (tmp_path / "plain" in roots) is kept
    for cache in caches:
        if cache._temporary is not None:
            cache._temporary.cleanup()
