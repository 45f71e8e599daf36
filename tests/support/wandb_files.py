"""Reads what Weights & Biases writes while it is offline."""

from __future__ import annotations

import importlib
import json
import struct
from pathlib import Path
from typing import Any

from tests.support.waiting import until


def wandb_history(folder: Path) -> list[dict[str, Any]]:
    """Everything that was logged, by name.

    Args:
        folder: The one that the log was given.
    """
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in wandb_records(folder)
        if record.HasField("history")
    ]


def wandb_records(folder: Path) -> list[Any]:
    """What the package has written, once its own process is through with it."""
    until(
        lambda: any(record.HasField("exit") for record in read_wandb_records(folder)), 60,
        "the package has not finished its file", poll_s=0.1,
    )  # fmt: skip
    return read_wandb_records(folder)


def read_wandb_records(folder: Path) -> list[Any]:
    """Protobuf records in LevelDB's log format, after a header of 7 bytes."""
    record_type = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, position, part, records = path.read_bytes(), 7, b"", []
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
        length, kind = struct.unpack_from("<HB", data, position + 4)
        if position + 7 + length > len(data):
            break
        part += data[position + 7 : position + 7 + length]
        position += 7 + length
        # Whole, or the last part of one; parts before it are only collected.
        if kind in (1, 4):
            records.append(record_type.FromString(part))
            part = b""
    return records
