"""TFRecord files, written by the format's definition and a library's CRC."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import google_crc32c


def write_records(path: Path, records: Iterable[bytes]) -> None:
    def masked(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for data in records:
            length = struct.pack("<Q", len(data))
            file.write(length + masked(length) + data + masked(data))
