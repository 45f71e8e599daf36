"""Gives memory of unloaded models back to the operating system."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from functools import cache


def release_memory() -> None:
    """Collects garbage and hands freed heap pages back to the operating system.

    A runtime that frees a model gives its memory back to the C library, which
    keeps it for later: the process stays as large as it ever was. Where the C
    library has ``malloc_trim`` (glibc), it is asked to let go of it.
    """
    # Models of Python runtimes are full of cycles: without this their memory is not even freed.
    gc.collect()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    # musl, for one, has no such function, and needs none.
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is None:
        return None
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_int
    return function  # type: ignore[no-any-return]
