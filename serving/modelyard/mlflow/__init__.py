"""The MLflow flavor: published versions in MLflow's tracking and registry, served by MLflow where that is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.lazy import attach

if TYPE_CHECKING:
    from modelyard.mlflow._flavor import load_model, log_model, save_model

__all__ = [
    "load_model",
    "log_model",
    "save_model",
]

__getattr__, __dir__ = attach(__name__, extra="mlflow")
