"""OpenVINO's entry point, which a process must never give back."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def openvino_core() -> Any:
    """The one ``openvino.Core`` of this process, kept to its end.

    Its CPU plugin gives the thread that loads it a stack for signal handlers
    (``sigaltstack(2)``), and unmaps that when the plugin goes, on whatever thread
    that happens: the next signal, such as Ctrl-C, then ends the process without
    a word (seen with OpenVINO 2026.4).

    Raises:
        ModuleNotFoundError: OpenVINO is not installed.
    """
    import openvino

    return openvino.Core()
