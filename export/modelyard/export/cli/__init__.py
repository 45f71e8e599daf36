"""``modelyard export``: in a process of its own, or in this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.lazy import attach

if TYPE_CHECKING:
    from modelyard.export.cli._cli import export_here, make_parser
    from modelyard.export.cli._process import main

__all__ = ["export_here", "main", "make_parser"]

__getattr__, __dir__ = attach(__name__, extra="export")
