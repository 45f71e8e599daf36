"""Deletes what a server never opens from the environment that runs this, and lists it in the file named.

A pattern that matches nothing is an error: it means that a package has changed
and that somebody has to look again.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path

#: By package: its tests, its converters and tools, its accelerators for hardware that the backends here do not use.
PATTERNS: dict[str, tuple[str, ...]] = {
    "ai_edge_litert": (
        "aot",
        "format_converter_wrapper_pybind11.so",
        "libLiteRtWebGpuAccelerator.so",
        "tools",
        "vendors",
    ),
    "numpy": ("**/tests", "_core/include", "_core/lib/*.a", "f2py"),
    "onnxruntime": ("datasets", "quantization", "tools", "transformers"),
}


def main(listing: Path) -> int:
    """Slims the environment.

    Args:
        listing: Where the removed paths are listed, with their sizes in bytes.
    """
    site = Path(sysconfig.get_path("purelib"))
    removed: list[str] = []
    unmatched: list[str] = []
    for package, patterns in PATTERNS.items():
        if importlib.util.find_spec(package) is None:
            continue
        for pattern in patterns:
            paths = sorted((site / package).glob(pattern))
            if not paths:
                unmatched.append(f"{package}/{pattern}")
            for path in paths:
                removed.append(f"{_size(path):>12} {path.relative_to(site)}\n")
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    if unmatched:
        sys.stderr.write(f"slim.py: nothing matches {', '.join(unmatched)}; look at the package's new files.\n")
        return 1
    listing.write_text("".join(removed))
    return 0


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
