"""Memory of models: what lives long is out of the garbage collector's sight, and what is unloaded is given back."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from functools import cache


def settle_memory() -> None:
    """Takes everything that lives now out of the garbage collector's sight, for a process that only serves.

    A full collection looks at each object of each imported library, and all
    requests wait for it: 15 to 30 ms, where those that came later are looked at in one.
    """
    gc.freeze()


def release_memory() -> None:
    """Collects garbage, also what was settled, and hands freed heap pages back to the operating system.

    A runtime that frees a model gives its memory back to the C library, which
    keeps it for later: the process stays as large as it ever was. Where the C
    library has ``malloc_trim`` (glibc), it is asked to let go of it.
    """
    settled = gc.get_freeze_count() > 0
    gc.unfreeze()
    # Models of Python runtimes are full of cycles: without this their memory is not even freed.
    gc.collect()
    if settled:
        gc.freeze()
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
