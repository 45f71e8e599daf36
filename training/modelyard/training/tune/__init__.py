"""Searches for good hyperparameters with Optuna: parallel, pruned, and going on after a kill.

Importing it needs the extra ``tune``.
"""

from __future__ import annotations

from modelyard.errors import MissingDependencyError

try:
    from modelyard.training.tune._search import SearchResult, search
    from modelyard.training.tune._space import Parameter, parse_parameter
    from modelyard.training.tune._study import TuneOptions, load_options
    from modelyard.training.tune._trial import ReportAction, configure
except ModuleNotFoundError as exc:
    if (exc.name or "").partition(".")[0] != "optuna":
        raise
    raise MissingDependencyError(package="optuna", extra="tune", purpose="modelyard.training.tune") from exc

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
