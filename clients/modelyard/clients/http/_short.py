"""A cache for readers of heads: a server says the same in every answer of a second."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

_T = TypeVar("_T")

#: Together the bound of a cache: 32 KiB of heads, and what they were read as.
_HEADS, _HEAD_BYTES = 32, 1024


def cache_short(read: Callable[[bytes], _T]) -> Callable[[bytes], _T]:
    """Remembers what the last short heads were read as; longer ones are read each time."""
    cached = lru_cache(maxsize=_HEADS)(read)

    @wraps(read)
    def remembered(head: bytes) -> _T:
        return cached(head) if len(head) <= _HEAD_BYTES else read(head)

    return remembered
