"""What is done beside a run: logs, images, an early end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.lazy import attach
from modelyard.training.actions._csv import CsvLog
from modelyard.training.actions._early_stop import EarlyStop
from modelyard.training.actions._jsonl import JsonlLog
from modelyard.training.actions._throughput import Throughput, ThroughputLog
from modelyard.training.actions._wandb import WANDB_MODES, WandbLog

if TYPE_CHECKING:
    from modelyard.training.actions._predictions import ImagePredictions, find_predictions, predict_images
    from modelyard.training.actions._tensorboard import TensorBoardLog

__all__ = [
    "CsvLog",
    "EarlyStop",
    "ImagePredictions",
    "JsonlLog",
    "TensorBoardLog",
    "Throughput",
    "ThroughputLog",
    "WANDB_MODES",
    "WandbLog",
    "find_predictions",
    "predict_images",
]

__getattr__, __dir__ = attach(__name__, extra="training")
