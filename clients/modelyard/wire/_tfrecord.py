"""TFRecord files: u64 length, masked CRC-32C of the length, data, masked CRC-32C of the data (little-endian)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from modelyard.errors import IntegrityError

#: Castagnoli's polynomial, reversed; TFRecord masks the sum (``tensorflow/core/lib/hash/crc32c.h``).
_POLYNOMIAL, _MASK_DELTA = 0x82F63B78, 0xA282EAD8
#: Of a protobuf message, which a record is.
MAX_MESSAGE = (1 << 31) - 1
_HEAD, _TAIL = struct.Struct("<QI"), struct.Struct("<I")


def crc32c(data: bytes) -> int:
    """The CRC-32C of some bytes, without a library: some 10 MB/s.

    Args:
        data: The bytes.
    """
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def frame_record(data: bytes, *, checksum: Callable[[bytes], int] = crc32c) -> bytes:
    """One record as a TFRecord file has it.

    Args:
        data: The record.
        checksum: CRC-32C of some bytes; a library's is hundreds of times faster.
    """
    length = len(data).to_bytes(8, "little")
    head = _HEAD.pack(len(data), _masked(checksum(length)))
    return head + data + _TAIL.pack(_masked(checksum(data)))


def read_records(path: Path, *, checksum: Callable[[bytes], int] = crc32c) -> Iterator[bytes]:
    """Reads a TFRecord file, each record with its checksums.

    Args:
        path: The file, not compressed.
        checksum: CRC-32C of some bytes; a library's is hundreds of times faster.

    Yields:
        The data of each record.

    Raises:
        IntegrityError: The file cannot be read, is no TFRecord file, or is damaged.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            while head := file.read(_HEAD.size):
                # A length beyond the file's end, or a message's, never becomes an allocation.
                if (
                    len(head) < _HEAD.size
                    or _masked(checksum(head[:8])) != _HEAD.unpack(head)[1]
                    or _HEAD.unpack(head)[0] > min(size, MAX_MESSAGE)
                ):
                    at = file.tell() - len(head)
                    raise IntegrityError(
                        f"{path} is damaged at byte {at}. Please verify that it is in TFRecord format."
                    )
                data, tail = file.read(_HEAD.unpack(head)[0]), file.read(_TAIL.size)
                if len(tail) < _TAIL.size or _masked(checksum(data)) != _TAIL.unpack(tail)[0]:
                    raise IntegrityError(
                        f"{path} is damaged: a record of {len(data)} bytes has another checksum. "
                        "Please verify that it is in TFRecord format."
                    )
                yield data
    except OSError as exc:
        raise IntegrityError(f"Cannot read {path}: {exc.strerror}.") from exc


@cache
def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
