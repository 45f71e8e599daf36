"""Graphs without the operators that a converter lacks.

Public API: :func:`all_nodes`, :func:`rewrite`, :func:`without_cases` and :data:`Target`.
"""

from modelyard.export.rewrites._replay import all_nodes
from modelyard.export.rewrites._rewrite import rewrite, without_cases
from modelyard.export.rewrites._rules import Target

__all__ = ["Target", "all_nodes", "rewrite", "without_cases"]
