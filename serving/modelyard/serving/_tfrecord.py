"""TFRecord files: u64 length, masked CRC-32C of the length, data, masked CRC-32C of the data (little-endian)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from modelyard.errors import IntegrityError

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8


def read_records(path: Path) -> Iterator[bytes]:
    """Reads a TFRecord file.

    Args:
        path: The file.

    Yields:
        The data of each record.

    Raises:
        IntegrityError: The file cannot be read, is not in TFRecord format, or
            is damaged.
    """
    try:
        yield from _read(path)
    except OSError as exc:
        raise IntegrityError(f"{path} cannot be read: {exc.strerror}") from exc


def _read(path: Path) -> Iterator[bytes]:
    broken = IntegrityError(f"{path} is damaged: please verify that it is in TFRecord format.")
    with path.open("rb") as file:
        size = path.stat().st_size
        while header := file.read(_LENGTH.size + _CRC.size):
            if len(header) < _LENGTH.size + _CRC.size:
                raise broken
            (length,) = _LENGTH.unpack_from(header)
            if _CRC.unpack_from(header, _LENGTH.size)[0] != _masked(header[: _LENGTH.size]) or length > size:
                raise broken
            data, checksum = file.read(length), file.read(_CRC.size)
            if len(data) < length or len(checksum) < _CRC.size or _CRC.unpack(checksum)[0] != _masked(data):
                raise broken
            yield data


def _masked(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF
