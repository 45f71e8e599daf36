"""Memory of models and the garbage collector."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable
from functools import cache

#: How often the memory of the process is looked at, and how much more of it than the last time is looked into.
_LOOK_S, _KEPT_BYTES = 5.0, 32 << 20


def settle_memory() -> None:
    """Excludes all present objects from garbage collection, for a process that only serves.

    A full collection visits each object of each imported library, and all requests wait for it.
    """
    gc.freeze()


def release_memory() -> None:
    """Collects garbage, also settled objects, and returns freed heap pages to the operating system.

    A runtime that frees a model returns its memory to the C library, which
    keeps it for later; ``malloc_trim`` of glibc releases it.
    """
    settled = gc.get_freeze_count() > 0
    gc.unfreeze()
    # Models of Python runtimes are full of reference cycles.
    gc.collect()
    if settled:
        gc.freeze()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


async def return_memory(resident_bytes: Callable[[], int | None]) -> None:
    """Returns what bursts of requests have taken and freed to the operating system, for as long as it runs.

    glibc keeps freed megabytes below others that live, in as many heaps as there are threads.
    """
    trim, least = _malloc_trim(), resident_bytes()
    if trim is None or least is None:
        return
    while True:
        await asyncio.sleep(_LOOK_S)
        used = resident_bytes() or 0
        if used > least + _KEPT_BYTES:
            await asyncio.to_thread(trim, 0)
            least = resident_bytes() or 0
        else:
            least = min(least, used)


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
