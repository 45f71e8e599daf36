"""Graphs without the operators that a converter lacks.

Public API: :func:`rewrite` and :data:`Target`.
"""

from modelyard.export.rewrites._rewrite import rewrite
from modelyard.export.rewrites._rules import Target

__all__ = ["Target", "rewrite"]
