"""Heaps of the C library: each case in a process of its own, for a limit lasts as long as the process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

#: Threads that hold what they have allocated; then glibc says what each heap has.
PROGRAM = """
import ctypes, sys, threading
from modelyard.serving.servables import limit_heaps
if len(sys.argv) > 1:
    limit_heaps(int(sys.argv[1]))
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
held = threading.Barrier(9)
def hold():
    assert libc.malloc(ctypes.c_size_t(100_000))
    held.wait()
for _ in range(8):
    threading.Thread(target=hold).start()
held.wait()
libc.malloc_stats()
"""


def heaps(*limit: str, **environment: str) -> int:
    left = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *limit],
        env={**left, **environment}, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stderr.count("Arena ")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have one heap")
def test_threads_share_as_many_heaps_as_they_are_given() -> None:
    assert heaps() > 3
    assert heaps("3") == 3
    # Who runs the server knows better.
    assert heaps("3", MALLOC_ARENA_MAX="2") == 2
