"""Memory of models and the garbage collector."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

#: How often the memory of the process is looked at, with how many of the last looks it is compared, and how much more
#: than the least of them is looked into. A burst may be at work for several looks before it frees anything.
_LOOK_S, _LOOKS, _KEPT_BYTES = 5.0, 60, 4 << 20
#: Of malloc.h.
_ARENA_MAX = -8


def settle_memory(modules: int) -> int:
    """Excludes all present objects from garbage collection, for a process that only serves.

    A full collection visits each object of each imported library, and all requests wait for it. After a load that
    imported none, nothing is excluded: what requests at work have now is garbage soon, and would stay for good.
    Objects are not counted for this: ``gc.get_objects`` breaks tuples that other threads are building.

    Args:
        modules: What the call after the load before returned; 0 where this is the first.

    Returns:
        How many modules are imported.
    """
    imported = len(sys.modules)
    if imported > modules:
        gc.freeze()
    return imported


def release_memory() -> None:
    """Returns freed heap pages to the operating system.

    A runtime that frees a model returns its memory to the C library, which
    keeps it for later; ``malloc_trim`` of glibc releases it.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


async def return_memory(resident_bytes: Callable[[], int | None]) -> None:
    """Returns what bursts of requests have taken and freed to the operating system, for as long as it runs.

    glibc keeps freed megabytes below others that live, in as many heaps as there are threads.
    """
    trim, used = _malloc_trim(), resident_bytes()
    if trim is None or used is None:
        return
    last = deque([used], _LOOKS)
    while True:
        await asyncio.sleep(_LOOK_S)
        if (resident_bytes() or 0) > min(last) + _KEPT_BYTES:
            await asyncio.to_thread(trim, 0)
        last.append(resident_bytes() or 0)


def limit_heaps(count: int) -> None:
    """Has threads that begin after this share so many heaps, unless ``MALLOC_ARENA_MAX`` says how many.

    Otherwise glibc makes eight for each processor of the machine, and what is freed in one is not used again by threads
    of another (mallopt(3), M_ARENA_MAX): with versions that come and go, memory grew for as long as they did.

    Args:
        count: How many; with one for each processor, they are not waited for.
    """
    limit = _of_glibc("mallopt", ctypes.c_int, ctypes.c_int)
    if limit is not None and "MALLOC_ARENA_MAX" not in os.environ:
        limit(_ARENA_MAX, count)


def _malloc_trim() -> Callable[[int], int] | None:
    return _of_glibc("malloc_trim", ctypes.c_size_t)


def _of_glibc(name: str, *arguments: Any) -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    # musl, for one, has no such functions, and needs none.
    function = getattr(ctypes.CDLL(None), name, None)
    if function is None:
        return None
    function.argtypes, function.restype = arguments, ctypes.c_int
    return function  # type: ignore[no-any-return]
