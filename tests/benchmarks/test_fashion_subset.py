from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fashion_subset import first_of_each_class, main
from modelyard.errors import DatasetNotFoundError
from modelyard.training.data import load_fashion_mnist
from tests.training.data.conftest import FILES, SUBSET_FOLDER


def test_the_first_of_each_class_in_order() -> None:
    labels = np.array([1, 0, 1, 1, 0, 2, 2, 0], np.uint8)
    assert first_of_each_class(labels, 2).tolist() == [0, 1, 2, 4, 5, 6]


def test_the_script_makes_the_shipped_subset_from_the_full_data(tmp_path: Path) -> None:
    try:
        load_fashion_mnist(allow_subset=False, allow_download=False)
    except DatasetNotFoundError:
        pytest.skip("the full data set is not on this machine")
    assert main([str(tmp_path)]) == 0
    for name in FILES:
        assert gzip.decompress((tmp_path / name).read_bytes()) == gzip.decompress((SUBSET_FOLDER / name).read_bytes())


def test_without_the_full_data_it_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELYARD_DATA", "subset")
    with pytest.raises(DatasetNotFoundError):
        main([str(tmp_path)])
