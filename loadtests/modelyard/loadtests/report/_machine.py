"""The machine and the versions of a run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

_PACKAGES = (
    "modelyard",
    "numpy",
    "protobuf",
    "grpcio",
    "locust",
    "onnxruntime",
    "ai-edge-litert",
    "openvino",
    "uvloop",
)


def describe_machine() -> dict[str, str]:
    """Processor, cores, memory and system, as far as they can be found out."""
    found = {
        "processor": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "cores of this process": str(_own_cores()),
        "system": platform.platform(),
    }
    memory = _field("/proc/meminfo", "MemTotal")
    if memory.removesuffix(" kB").isdecimal():
        found["memory"] = f"{int(memory.removesuffix(' kB')) / (1 << 20):.1f} GiB"
    if hasattr(os, "getloadavg"):
        found["load average"] = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return found


def describe_versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, of those that are installed here."""
    found = {"Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return {name: version for name, version in found.items() if version != "not installed"}


def _own_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _field(path: str, name: str) -> str:
    file = Path(path)
    if file.is_file():
        for line in file.read_text("utf-8", "replace").splitlines():
            key, colon, value = line.partition(":")
            if colon and key.strip() == name:
                return value.strip()
    return ""
