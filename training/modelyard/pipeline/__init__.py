"""The whole way in one call: train, export, verify, publish, serve, predict."""

from modelyard.pipeline._compare import Comparison, compare
from modelyard.pipeline._picture import draw_predictions
from modelyard.pipeline._run import RunOptions, RunReport, run_pipeline
from modelyard.pipeline._server import Address, served

__all__ = [
    "Address",
    "Comparison",
    "RunOptions",
    "RunReport",
    "compare",
    "draw_predictions",
    "run_pipeline",
    "served",
]
