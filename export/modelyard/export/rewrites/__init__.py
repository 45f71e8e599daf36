"""Graphs without the operators that a converter lacks."""

from modelyard.export.rewrites._floats import kinds_of, widen
from modelyard.export.rewrites._replay import all_nodes
from modelyard.export.rewrites._rewrite import Target, rewrite, without_cases

__all__ = ["Target", "all_nodes", "kinds_of", "rewrite", "widen", "without_cases"]
