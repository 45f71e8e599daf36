"""The whole way in one call: train, export, verify, publish, serve, predict."""

from modelyard.pipeline._compare import Comparison, compare
from modelyard.pipeline._picture import draw_predictions
from modelyard.pipeline._server import served

__all__ = ["Comparison", "compare", "draw_predictions", "served"]
