"""TFRecord files, beside TensorFlow's; and damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelyard.errors import IntegrityError
from modelyard.wire import crc32c, frame_record, read_records
from tests.support.hostile import make_large

RECORDS = (b"", b"\0", b"hello", bytes(range(256)) * 2)


def test_files_are_tensorflow_s(tmp_path: Path) -> None:
    import tensorflow as tf

    path = tmp_path / "records"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in RECORDS:
            writer.write(record)
    assert path.read_bytes() == b"".join(map(frame_record, RECORDS))
    assert tuple(read_records(path)) == RECORDS


def test_the_check_value_of_the_catalogue() -> None:
    # https://reveng.sourceforge.io/crc-catalogue/17plus.htm, CRC-32/ISCSI.
    assert crc32c(b"123456789") == 0xE3069283


def test_another_checksum_is_used_for_all(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(frame_record(b"abc", checksum=len))
    assert list(read_records(path, checksum=len)) == [b"abc"]
    with pytest.raises(IntegrityError, match=r"is damaged at byte 0"):
        list(read_records(path))


def test_a_bit_that_changed_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    path, first = tmp_path / "records", frame_record(b"first")
    whole = first + frame_record(b"second")
    for place in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            found: list[bytes] = []
            with pytest.raises(IntegrityError, match="records is damaged"):
                found.extend(read_records(path))
            assert found == ([b"first"] if place >= len(first) else [])
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        if size != len(first):
            with pytest.raises(IntegrityError, match="records is damaged"):
                list(read_records(path))


@pytest.mark.parametrize("bits", [60, 40])
def test_a_length_beyond_the_end_or_a_message_s_takes_no_memory(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "records"
    # A head with right checksums, of a record of an exabyte, or of a terabyte, which the file seems to have.
    length = (1 << bits).to_bytes(8, "little")
    crc = crc32c(length)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    make_large(path)
    with path.open("r+b") as file:
        file.write(length + masked.to_bytes(4, "little") + b"\0" * 100)
    with pytest.raises(IntegrityError, match="damaged at byte 0"):
        list(read_records(path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="Cannot read .*none: No such file"):
        list(read_records(tmp_path / "none"))
