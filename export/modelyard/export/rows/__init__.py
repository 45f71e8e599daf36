"""Whether requests may share a batch: shown at export, by the operations of the source and by experiment."""

from modelyard.export.rows._check import check_rows, walk_graphs
from modelyard.export.rows._walk import walk_rows

__all__ = ["check_rows", "walk_graphs", "walk_rows"]
