"""The idx format of MNIST and its successors.

A file is two zero bytes, one byte for the type (8 is unsigned byte), one for
the number of dimensions, the sizes as big-endian 32-bit integers, and the
values. Source: http://yann.lecun.com/exdb/mnist/ ("The IDX file format").
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from modelyard.errors import TrainingError

_UNSIGNED_BYTE = 8
_PREFIX = struct.Struct(">HBB")


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Reads one idx file of unsigned bytes; with gzip where its name ends in ``.gz``."""
    packed = path.suffix == ".gz"
    try:
        content = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    except (OSError, EOFError, zlib.error) as exc:
        kind = "a gzip" if packed else "an idx"
        raise TrainingError(f"{path} cannot be read as {kind} file: {exc}. Remove it and get it again.") from exc
    if len(content) < _PREFIX.size:
        raise _damaged(path, f"it holds {len(content)} bytes, fewer than an idx header")
    zero, kind, rank = _PREFIX.unpack_from(content)
    if zero != 0 or kind != _UNSIGNED_BYTE or rank == 0:
        raise _damaged(
            path, f"its first four bytes are {content[:4].hex()}, where idx of unsigned bytes has 0000080N, N > 0"
        )
    start = _PREFIX.size + 4 * rank
    if len(content) < start:
        raise _damaged(path, f"its header announces {rank} dimensions and ends after {len(content)} bytes")
    shape = struct.unpack_from(f">{rank}I", content, _PREFIX.size)
    # math.prod keeps Python integers: a hostile header must not overflow.
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise _damaged(path, f"its header declares shape {list(shape)}, {expected} bytes in all; it has {len(content)}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _damaged(path: Path, reason: str) -> TrainingError:
    return TrainingError(f"{path} is not a complete idx file: {reason}. Remove it and get it again.")
