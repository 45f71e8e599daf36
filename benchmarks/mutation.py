"""Changes the code at one place at a time, counts how many changes the tests notice, and writes what came of it.

Places are drawn from all that cosmic-ray finds in an area's modules. Each change is made in a copy of the checkout,
where the area's tests run until one fails. A change that no test notices is listed: either a test is missing there, or
the code means the same with it.

    pip install cosmic-ray
    python -m benchmarks.mutation [AREA ...] [--sample N] [--seed N] [--jobs N] [--write]
"""

from __future__ import annotations

import argparse
import difflib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from queue import SimpleQueue

from benchmarks.pages import read_section, write_section

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
MARKS = ("<!-- mutation:begin -->", "<!-- mutation:end -->")
ROOMS = ("clients", "export", "loadtests", "serving", "training")
#: What tests that do not end get, beside ten times as long as all of them take without a change.
PATIENCE_S = 30
#: What one test gets: without a change, none takes as long.
TEST_S = 120
#: These change annotations, or mean the same for the values that are compared here.
_SAME = re.compile(r"BitOr|_Is$|_IsNot$|_Is_Eq|_IsNot_NotEq|RemoveDecorator")

_SERVING = "serving/modelyard/serving"


@dataclass(frozen=True, kw_only=True)
class Area:
    """Modules, and the tests that must notice what changes in them."""

    modules: Sequence[str]
    tests: Sequence[str]


AREAS = {
    "codecs": Area(modules=["clients/modelyard/wire/_*.py"], tests=["tests/wire"]),
    "manifest": Area(
        modules=["export/modelyard/artifact/_manifest*.py"], tests=["tests/artifact/test_manifest.py", "tests/artifact"]
    ),
    "repository": Area(
        modules=[f"{_SERVING}/repository/_{name}.py" for name in ("manager", "table", "versions", "watcher")],
        tests=["tests/serving/repository", "tests/contract/test_lifecycle.py", "tests/contract/test_labels.py",
               "tests/contract/test_repository.py", "tests/contract/test_hanging.py"],
    ),
    "batching": Area(
        modules=[f"{_SERVING}/batching/_{name}.py" for name in ("batcher", "counts", "queue", "sharing")],
        tests=["tests/serving/batching", "tests/contract/test_batching.py", "tests/contract/test_hanging.py"],
    ),
    "admission": Area(
        modules=[f"{_SERVING}/batching/_admission.py"],
        tests=["tests/serving/batching", "tests/contract/test_overload.py"],
    ),
}  # fmt: skip


@dataclass
class Found:
    """What came of an area's changes."""

    places: int
    killed: int = 0
    survivors: list[str] = field(default_factory=list)


def changes(module: Path) -> Iterator[tuple[int, str]]:
    """All changes of a module that cosmic-ray knows: the line, and the whole text with it."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    text = module.read_text("utf-8")
    nodes = list(ast_nodes(get_ast_from_path(module)))
    for name in operator_names():
        kind = get_operator(name)
        if kind.arguments() or _SAME.search(name):
            continue
        places = [start for node in nodes for start, _ in kind().mutation_positions(node)]
        for occurrence, (line, _) in enumerate(places):
            changed = mutate_code(text, kind(), occurrence)
            if changed is not None and changed != text:
                yield line, changed


def copy(folder: Path) -> Path:
    """A copy of what git knows of, the native core excepted: it is installed."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in names.split("\0"):
        if name and not name.startswith("serving/core/"):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
    return folder


def passes(folder: Path, tests: Sequence[str], limit_s: float | None = None) -> bool:
    """Whether tests pass in a copy, and end in time."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(folder / room) for room in ROOMS),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TF_ENABLE_ONEDNN_OPTS": "1",
    }
    ends = ["-o", f"faulthandler_timeout={TEST_S}", "-o", "faulthandler_exit_on_timeout=true"]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *ends, *tests]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        return process.wait(limit_s) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        # Servers that its tests have started are in the same session.
        subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)
        process.wait()


def run(area: Area, sample: int, seed: int, jobs: int) -> Found:
    """Tries some of an area's changes."""
    modules = sorted(path for pattern in area.modules for path in ROOT.glob(pattern))
    every = [(path.relative_to(ROOT), line, text) for path in modules for line, text in changes(path)]
    drawn = random.Random(seed).sample(every, min(sample, len(every)))
    found = Found(places=len(every))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, ThreadPoolExecutor(jobs) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copies.put(copy(Path(scratch) / str(number)))
        began = time.monotonic()
        if not passes(Path(scratch) / "0", area.tests):
            raise SystemExit(f"{' '.join(area.tests)} fail without any change; mutations would all count as killed.")
        limit_s = PATIENCE_S + 10 * (time.monotonic() - began)

        def survives(change: tuple[Path, int, str]) -> str | None:
            path, line, text = change
            folder = copies.get()
            original = (folder / path).read_text("utf-8")
            try:
                (folder / path).write_text(text, "utf-8")
                alive = passes(folder, area.tests, limit_s)
            finally:
                (folder / path).write_text(original, "utf-8")
                copies.put(folder)
            told = described(path, line, original, text)
            print(f"{'SURVIVED' if alive else 'killed'} {told}", file=sys.stderr, flush=True)
            return told if alive else None

        told = [each for each in pool.map(survives, drawn) if each is not None]
    found.survivors = sorted(told)
    found.killed = len(drawn) - len(told)
    return found


def described(path: Path, line: int, before: str, after: str) -> str:
    """A change in one line of Markdown."""
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    old = " ".join(each[2:].strip() for each in lines if each.startswith("- "))
    new = " ".join(each[2:].strip() for each in lines if each.startswith("+ "))
    return f"`{path.name}:{line}` `{old}` → `{new}`"


def section(found: dict[str, Found], seed: int, before: str) -> str:
    """The table, and the survivors below it; of areas that were not tried, what stood there before."""
    lines = before.splitlines()
    rows, survivors = [], []
    for name in AREAS:
        each = found.get(name)
        if each is None:
            rows += [line for line in lines if line.startswith(f"| {name} |")]
            survivors += [line for line in lines if line.startswith(f"- {name}: ")]
        else:
            tried = each.killed + len(each.survivors)
            share = f"{each.killed / tried:.0%}"
            rows.append(f"| {name} | {each.places:,} | {seed} | {tried} | {each.killed} | {share} | {date.today()} |")
            survivors += [f"- {name}: {told}" for told in each.survivors]
    return "\n".join(
        [
            "| area | places | seed | tried | noticed | | on |",
            "|---|---:|---:|---:|---:|---:|---|",
            *rows,
            *(["", "Not noticed:", "", *survivors] if survivors else []),
        ]
    )


def main() -> int:
    """Tries the areas that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)}; all, unless some are named")
    parser.add_argument("--sample", type=int, default=60, help="changes of each area (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="by which they are drawn (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (default %(default)s)")
    parser.add_argument("--write", action="store_true", help="write it into docs/reliability.md, beside other areas")
    options = parser.parse_args()
    unknown = sorted(set(options.areas) - set(AREAS))
    if unknown:
        parser.error(f"there is no area {', '.join(unknown)}; there are {', '.join(AREAS)}")
    found = {name: run(AREAS[name], options.sample, options.seed, options.jobs) for name in options.areas or AREAS}
    text = section(found, options.seed, read_section(PAGE, *MARKS) if options.write else "")
    print(text)
    if options.write:
        write_section(PAGE, *MARKS, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
