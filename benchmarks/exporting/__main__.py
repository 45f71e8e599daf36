"""Measures what is not yet measured, shows it, and writes the page where that is asked for."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.exporting import _cells, _page
from benchmarks.exporting._cells import Cell

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "tensorflow", "keras", "tf2onnx", "onnx", "onnxruntime", "onnxslim", "ai-edge-litert",
    "onnxruntime-extensions", "keras-hub", "tf_keras",
)  # fmt: skip


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exporting", description=__doc__)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="NAME", help="kinds or themes; may hold * and ?")
    parser.add_argument("--routes", nargs="+", choices=_page.ROUTES, default=_page.ROUTES)
    parser.add_argument("--formats", nargs="+", choices=_page.FORMATS, default=_page.FORMATS)
    parser.add_argument(
        "--results", type=Path, default=ROOT / "demo" / "what-can-be-exported.jsonl", help="lines of JSON"
    )
    parser.add_argument("--again", action="store_true", help="measure again what is in the file, of the same code too")
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time (default %(default)s)")
    parser.add_argument("--limit-s", type=float, default=240.0, help="seconds for each process (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing new after so many seconds")
    parser.add_argument("--write", action="store_true", help="write docs/what-can-be-exported.md and .json")
    parser.add_argument("--list", action="store_true", help="list the kinds")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    kinds = _page.load_kinds()
    chosen = [
        name for name, each in kinds.items() if any(fnmatch(name, glob) or each["theme"] == glob for glob in args.only)
    ]
    if not chosen:
        parser.error(f"no kind is called {' or '.join(args.only)}; --list shows them")
    if args.list:
        for name in chosen:
            print(f"{name:28s} {kinds[name]['theme']:12s} {kinds[name]['title']}")
        return 0
    known = _read(args.results)
    wanted = [(name, route, form) for name in chosen for route in args.routes for form in args.formats]
    left = [cell for cell in wanted if args.again or _print_of(cell, kinds) != known.get(cell, ({}, ""))[1]]
    args.results.parent.mkdir(parents=True, exist_ok=True)
    _measure(left, args, kinds)
    known = {cell: found for cell, found in _read(args.results).items() if cell[0] in kinds}
    cells = {cell: Cell(**line) for cell, (line, _) in known.items()}
    # Of both routes, whichever was measured now.
    print(_page.summary([cell for (name, _, form), cell in cells.items() if name in chosen and form in args.formats]))
    missing = [f"{name} {route} {form}" for name in kinds for route in _page.ROUTES for form in _page.FORMATS
               if (name, route, form) not in cells]  # fmt: skip
    if args.write:
        versions = {name: _version(name) for name in PACKAGES}
        older = sum(mark != _print_of(cell, kinds) for cell, (_, mark) in known.items())
        prints = {cell: mark for cell, (_, mark) in known.items()}
        _page.write(cells.values(), kinds, versions, datetime.now(UTC).date().isoformat(), older=older, prints=prints)
    if missing:
        print(f"{len(missing)} cells are not measured, such as {missing[0]}.", file=sys.stderr)
    return 1 if missing else 0


def _measure(left: list[tuple[str, str, str]], args: argparse.Namespace, kinds: dict[str, dict[str, str]]) -> None:
    _cells.prepare()
    # Of now: files may change while this runs.
    marks = {cell: _print_of(cell, kinds) for cell in left}
    started = time.monotonic()
    columns = (TextColumn("{task.description:60s}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        args.results.open("a", encoding="utf-8") as file,
        Progress(*columns, console=Console(stderr=True)) as progress,
        ThreadPoolExecutor(args.jobs) as pool,
    ):
        task = progress.add_task("", total=len(left))

        def work(cell: tuple[str, str, str]) -> None:
            if time.monotonic() - started > args.seconds:
                return
            name, route, form = cell
            progress.update(task, description=f"{name} {route} {form}")
            result = _cells.run_cell(name, route, form, limit_s=args.limit_s)
            # One write: lines of two threads do not mix.
            file.write(json.dumps({"print": marks[cell], **json.loads(result.line())}, ensure_ascii=False) + "\n")
            file.flush()
            said = f"{name} {route} {form}: {result.verdict} {' '.join(result.why.split())[:160]}"
            progress.console.print(said.strip(), markup=False, highlight=False, soft_wrap=True)
            progress.advance(task)

        list(pool.map(work, left))


def _read(results: Path) -> dict[tuple[str, str, str], tuple[dict[str, Any], str]]:
    # What the page has stays until it is measured again.
    rows = json.loads(_page.DATA.read_text())["cells"]
    found = {(row["kind"], row["route"], row["form"]): (row, row.pop("print", "")) for row in rows}
    for line in map(json.loads, results.read_text("utf-8").splitlines() if results.is_file() else []):
        mark = line.pop("print")
        found[line["kind"], line["route"], line["form"]] = (line, mark)
    return found


def _print_of(cell: tuple[str, str, str], kinds: dict[str, dict[str, str]]) -> str:
    """What a result depends on: versions, the kind's module, and for ours the export room."""
    name, route, _ = cell
    digest = hashlib.sha256(repr([_version(each) for each in PACKAGES]).encode())
    files = [ROOT / "benchmarks" / "zoo" / f"{kinds[name]['theme']}.py", ROOT / "benchmarks" / "zoo" / "_kind.py"]
    if route == "ours":
        files += sorted((ROOT / "export" / "modelyard").rglob("*.py"))
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    raise SystemExit(main())
