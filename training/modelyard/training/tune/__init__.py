"""Searches for good hyperparameters with Optuna: parallel, pruned, and going on after a kill.

Importing it needs the extra ``tune``.
"""

from __future__ import annotations

from modelyard.lazy import needs_extra

with needs_extra("tune", "optuna", purpose="modelyard.training.tune"):
    from modelyard.training.tune._search import SearchResult, search
    from modelyard.training.tune._space import Parameter, parse_parameter
    from modelyard.training.tune._study import TuneOptions, load_options
    from modelyard.training.tune._trial import ReportAction, configure

__all__ = [
    "Parameter",
    "ReportAction",
    "SearchResult",
    "TuneOptions",
    "configure",
    "load_options",
    "parse_parameter",
    "search",
]
