from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from benchmarks.fashion_subset import write_idx
from modelyard.errors import TrainingError
from modelyard.training.data._idx import read_idx


@given(
    values=hnp.arrays(
        np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5), elements=st.integers(0, 255)
    )
)
def test_what_was_written_is_read(values: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("idx") / "values.gz"
    write_idx(path, values)
    back = read_idx(path)
    assert back.dtype == np.uint8
    np.testing.assert_array_equal(back, values)


def test_the_same_values_give_the_same_bytes(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.uint8).reshape(3, 4)
    write_idx(tmp_path / "a.gz", values)
    write_idx(tmp_path / "b.gz", values)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x00\x00", "holds 2 bytes"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00", "first four bytes are 00000d01"),
        (b"\x01\x00\x08\x01\x00\x00\x00\x01\x00", "first four bytes are 01000801"),
        (b"\x00\x00\x08\x00", "first four bytes are 00000800"),
        (b"\x00\x00\x08\x03\x00\x00\x00\x02", "announces 3 dimensions and ends after 8 bytes"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x03ab", "declares shape [3], 11 bytes in all; it has 10"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x01ab", "declares shape [1], 9 bytes in all; it has 10"),
        (b"\x00\x00\x08\x03" + b"\xff" * 12, "it has 16"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(TrainingError) as caught:
        read_idx(path)
    assert str(path) in caught.value.message
    assert message in caught.value.message


@pytest.mark.parametrize("keep", [0, 5, 30], ids=["empty", "cut in the gzip header", "cut in the data"])
def test_a_truncated_gzip_file_is_an_error(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    write_idx(path, np.arange(200, dtype=np.uint8))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(TrainingError, match="images.gz"):
        read_idx(path)


def test_a_flipped_byte_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    write_idx(path, np.arange(200, dtype=np.uint8))
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(TrainingError, match="images.gz"):
        read_idx(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="cannot be read"):
        read_idx(tmp_path / "none.gz")
