"""Makes some of an area's changes in copies of the checkout, where the tests run until one fails."""

from __future__ import annotations

import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.mutation.areas import Area
from benchmarks.mutation.python_changes import python_changes
from benchmarks.mutation.rust_changes import CORE, NATIVE, build, rust_changes, unit_tests_pass

ROOT = Path(__file__).parents[2]
ROOMS = ("clients", "export", "loadtests", "serving", "training")
#: What tests that do not end get, beside ten times as long as all of them take without a change.
PATIENCE_S = 30
#: What one test gets: without a change, none takes as long.
TEST_S = 120


@dataclass(frozen=True, kw_only=True)
class Change:
    """The line of a file that changes, and the whole text with it."""

    path: Path
    line: int
    text: str


@dataclass
class Found:
    """What came of an area's changes."""

    places: int
    killed: int = 0
    survivors: list[str] = field(default_factory=list)


def changes_of(area: Area) -> Iterator[Change]:
    """All changes of an area's modules."""
    for module in sorted(path for pattern in area.modules for path in ROOT.glob(pattern)):
        found = rust_changes(ROOT, module) if area.native else python_changes(module)
        for line, text in found:
            yield Change(path=module.relative_to(ROOT), line=line, text=text)


def copy(folder: Path, *, native: bool) -> Path:
    """A copy of what git knows of, without the native core where that is not changed: it is installed."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in names.split("\0"):
        if name and (native or not name.startswith(f"{CORE}/")):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
    return folder


def passes(folder: Path, area: Area, limit_s: float | None = None) -> bool:
    """Whether an area's tests pass in a copy, and end in time."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(folder / room) for room in (NATIVE, *ROOMS)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TF_ENABLE_ONEDNN_OPTS": "1",
    }
    ends = ["-o", f"faulthandler_timeout={TEST_S}", "-o", "faulthandler_exit_on_timeout=true"]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *ends, *area.tests]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        if process.wait(limit_s):
            return False
    except subprocess.TimeoutExpired:
        return False
    finally:
        # Servers that its tests have started are in the same session.
        subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)
        process.wait()
    return not area.native or unit_tests_pass(folder, limit_s)


def try_some(area: Area, *, sample: int, seed: int, jobs: int) -> Found:
    """Makes changes, one after another in each copy, until as many as asked for could be tried."""
    every = list(changes_of(area))
    random.Random(seed).shuffle(every)
    found, waiting, lock = Found(places=len(every)), iter(every), threading.Lock()

    def take() -> Change | None:
        with lock:
            return next(waiting, None) if found.killed + len(found.survivors) < sample else None

    def work(folder: Path, limit_s: float) -> None:
        while (change := take()) is not None:
            original = (folder / change.path).read_text("utf-8")
            (folder / change.path).write_text(change.text, "utf-8")
            if not area.native or build(folder):
                alive = passes(folder, area, limit_s)
                told = _described(change, original)
                print(f"{'SURVIVED' if alive else 'killed'} {told}", file=sys.stderr, flush=True)
                with lock:
                    found.survivors += [told] if alive else []
                    found.killed += not alive
            (folder / change.path).write_text(original, "utf-8")

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, ThreadPoolExecutor(jobs) as pool:
        copies = [copy(Path(scratch) / str(number), native=area.native) for number in range(jobs)]
        if area.native and not all(build(folder) for folder in copies):
            raise SystemExit("The native core does not compile without any change.")
        began = time.monotonic()
        if not passes(copies[0], area):
            raise SystemExit(f"{' '.join(area.tests)} fail without any change; mutations would all count as killed.")
        limit_s = PATIENCE_S + 10 * (time.monotonic() - began)
        for done in [pool.submit(work, folder, limit_s) for folder in copies]:
            done.result()
    found.survivors.sort()
    return found


def _described(change: Change, original: str) -> str:
    """A change in one line of Markdown."""
    lines = list(difflib.ndiff(original.splitlines(), change.text.splitlines()))
    old, new = (
        textwrap.shorten(" ".join(each[2:] for each in lines if each.startswith(f"{side} ")), 120, placeholder=" ...")
        for side in "-+"
    )
    return f"`{change.path.name}:{change.line}` `{old}` → `{new}`"
