"""Changes of the native core, as cargo-mutants knows them, and the core built with one."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

CORE = Path("serving/core")
#: Where a copy has the core that its tests are to load.
NATIVE = "native"


@functools.cache
def _listed(core: Path) -> list[dict[str, Any]]:
    command = ["cargo", "mutants", "--list", "--json", "--dir", str(core)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def rust_changes(root: Path, module: Path) -> Iterator[tuple[int, str]]:
    """All changes of a module: the line, and the whole text with it. Not all of them compile."""
    text = module.read_text("utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for each in _listed(root / CORE):
        if root / CORE / each["file"] == module:
            begin, end = (_offset(starts, each["span"][side]) for side in ("start", "end"))
            yield each["span"]["start"]["line"], text[:begin] + each["replacement"] + text[end:]


def _offset(starts: list[int], position: Mapping[str, int]) -> int:
    return starts[position["line"] - 1] + position["column"] - 1


def build(folder: Path) -> bool:
    """Builds a copy's core where its tests find it first; False where it does not compile."""
    core, target = folder / CORE, folder / "target"
    command = ["cargo", "build", "--quiet", "--locked", "--offline", "--lib", "--features", "pyo3/extension-module"]
    if not _cargo(core, target, command):
        return False
    package = folder / NATIVE / "modelyard_core"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("from .modelyard_core import *\n", "utf-8")
    # A server that still has the last one must not see it change: a new file takes its place.
    built = package / "modelyard_core.abi3.so"
    shutil.copyfile(target / "debug" / "libmodelyard_core.so", built.with_suffix(".new"))
    built.with_suffix(".new").replace(built)
    return True


def unit_tests_pass(folder: Path, limit_s: float | None) -> bool:
    """Whether Rust's own tests pass in a copy, and end in time."""
    command = ["cargo", "test", "--quiet", "--locked", "--offline", "--no-default-features"]
    return _cargo(folder / CORE, folder / "target-unit", command, limit_s)


def _cargo(core: Path, target: Path, command: list[str], limit_s: float | None = None) -> bool:
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target)}
    try:
        return not subprocess.run(
            command, cwd=core, env=environment, timeout=limit_s, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ).returncode  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
