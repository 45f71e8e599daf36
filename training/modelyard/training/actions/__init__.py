"""What is done beside a run: logs, pictures, an early end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.lazy import load_attribute

if TYPE_CHECKING:
    from modelyard.training.actions._csv import CsvLog
    from modelyard.training.actions._early_stop import EarlyStop
    from modelyard.training.actions._jsonl import JsonlLog
    from modelyard.training.actions._predictions import ImagePredictions, find_predictions, predict_images
    from modelyard.training.actions._tensorboard import TensorBoardLog
    from modelyard.training.actions._throughput import Throughput, ThroughputLog
    from modelyard.training.actions._wandb import WANDB_MODES, WandbLog

_MODULES = {
    "CsvLog": "modelyard.training.actions._csv",
    "EarlyStop": "modelyard.training.actions._early_stop",
    "ImagePredictions": "modelyard.training.actions._predictions",
    "JsonlLog": "modelyard.training.actions._jsonl",
    "TensorBoardLog": "modelyard.training.actions._tensorboard",
    "Throughput": "modelyard.training.actions._throughput",
    "ThroughputLog": "modelyard.training.actions._throughput",
    "WANDB_MODES": "modelyard.training.actions._wandb",
    "WandbLog": "modelyard.training.actions._wandb",
    "find_predictions": "modelyard.training.actions._predictions",
    "predict_images": "modelyard.training.actions._predictions",
}

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


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _MODULES, name, extra="training")
