"""Batch prediction on engines that exist: one model for Ray Data, Spark and Apache Beam, and for a plain loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.batch._model import BatchModel
from modelyard.batch._spark import map_in_pandas, to_frame
from modelyard.lazy import attach

if TYPE_CHECKING:
    from modelyard.batch._beam import BeamModelHandler
    from modelyard.batch._run import FileOptions, FileReport, predict_files

__all__ = [
    "BatchModel",
    "BeamModelHandler",
    "FileOptions",
    "FileReport",
    "map_in_pandas",
    "predict_files",
    "to_frame",
]

__getattr__, __dir__ = attach(__name__, extra="beam")
