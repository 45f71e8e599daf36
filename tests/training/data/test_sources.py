from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from modelyard.errors import DatasetNotFoundError
from modelyard.training.data._sources import find_fashion_mnist
from tests.training.data.conftest import FILES, SUBSET_FOLDER


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the four files; no other place has them, and the network is unreachable."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    # It keeps the proxies of its first call: they must be looked up now, and again later.
    monkeypatch.setattr("urllib.request._opener", None)
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    folder = tmp_path / "copy" / "fashion-mnist"
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copy(SUBSET_FOLDER / name, folder)
    return folder


def test_the_named_folder_comes_first(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELYARD_DATA", str(copy))
    found = find_fashion_mnist(allow_subset=False, allow_download=False)
    assert found.folder == copy
    assert found.description == f"{copy} (from MODELYARD_DATA)"
    assert not found.subset


def test_so_does_its_sub_folder(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELYARD_DATA", str(copy.parent))
    assert find_fashion_mnist(allow_subset=False, allow_download=False).folder == copy


def test_a_named_folder_without_the_files_is_an_error_and_not_worked_around(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELYARD_DATA", str(tmp_path / "wrong"))
    with pytest.raises(DatasetNotFoundError) as caught:
        find_fashion_mnist(allow_subset=True, allow_download=True, debian_folder=copy)
    assert f"{tmp_path / 'wrong'}: no such folder" in caught.value.message


def test_one_missing_file_is_named(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy / FILES[2]).unlink()
    monkeypatch.setenv("MODELYARD_DATA", str(copy))
    with pytest.raises(DatasetNotFoundError, match=f"no {FILES[2]}"):
        find_fashion_mnist(allow_subset=True, allow_download=True)


def test_the_debian_package_comes_next(copy: Path) -> None:
    found = find_fashion_mnist(allow_subset=True, allow_download=True, debian_folder=copy)
    assert found.folder == copy
    assert found.description == "Debian package dataset-fashion-mnist"


def test_then_the_keras_cache(copy: Path, tmp_path: Path) -> None:
    cache = tmp_path / "keras" / "datasets" / "fashion-mnist"
    shutil.copytree(copy, cache)
    found = find_fashion_mnist(allow_subset=True, allow_download=True, debian_folder=tmp_path / "none")
    assert found.folder == cache
    assert found.description == f"Keras cache {cache}"


def test_a_failed_download_falls_to_the_subset_and_keeps_the_reason(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Keras reads KERAS_HOME when it is imported, which other tests may have done: nothing is downloaded anyhow.
    found = find_fashion_mnist(allow_subset=True, allow_download=True, debian_folder=tmp_path / "none")
    assert found.subset
    assert found.folder == SUBSET_FOLDER
    assert "download through Keras" in found.description


def test_nothing_found_lists_what_was_tried_and_every_way_to_get_it(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError) as caught:
        find_fashion_mnist(allow_subset=False, allow_download=False, debian_folder=tmp_path / "none")
    message = caught.value.message
    for tried in (str(tmp_path / "none"), str(tmp_path / "keras"), "download through Keras", "subset"):
        assert tried in message
    for way in (
        "apt-get install dataset-fashion-mnist",
        "MODELYARD_DATA",
        "Keras then downloads",
        "MODELYARD_DATA=subset",
    ):
        assert way in message


def test_the_subset_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELYARD_DATA", "subset")
    found = find_fashion_mnist(allow_subset=True, allow_download=False)
    assert found.subset
    assert found.description == "small subset shipped with modelyard"
    with pytest.raises(DatasetNotFoundError, match="wants the full data set"):
        find_fashion_mnist(allow_subset=False, allow_download=False)
