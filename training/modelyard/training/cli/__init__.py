"""The commands ``modelyard train``, ``modelyard evaluate`` and ``modelyard infer``."""

from modelyard.training.cli._cli import main
from modelyard.training.cli._command import Flag, add_assignments, add_flags, note
from modelyard.training.cli._evaluate_cli import evaluate_main, infer_main

__all__ = [
    "Flag",
    "add_assignments",
    "add_flags",
    "evaluate_main",
    "infer_main",
    "main",
    "note",
]
