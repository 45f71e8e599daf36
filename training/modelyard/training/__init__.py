"""The training room: the user owns the step, the library owns the loop.

Importing it is cheap: TensorFlow comes in with the first name that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.training._cluster import Cluster
from modelyard.training._goal import Goal
from modelyard.training._identity import RunRecord, read_record
from modelyard.training._lazy import load_attribute
from modelyard.training._options import LoopOptions, TrainerOptions
from modelyard.training._results import (
    Action,
    CheckpointSaved,
    EvalResult,
    Evaluated,
    Event,
    RunEnded,
    RunStarted,
    StepsDone,
    Stops,
    TrainResult,
    Watches,
    make_source,
)
from modelyard.training._task import InputRequest, Task

if TYPE_CHECKING:
    from modelyard.console import ProgressBar
    from modelyard.training._csv import CsvLog
    from modelyard.training._early_stop import EarlyStop
    from modelyard.training._evaluate import evaluate, predict
    from modelyard.training._jsonl import JsonlLog
    from modelyard.training._offload import offload_slots
    from modelyard.training._own_loop import CompiledStep, Loop
    from modelyard.training._pipelined import Pipeline, PipelineOptions, PipelineResult
    from modelyard.training._predictions import ImagePredictions, predict_images
    from modelyard.training._resident import ResidentData
    from modelyard.training._step import apply_gradients, average_loss, loss_scaled, minimize, regularization_loss
    from modelyard.training._strategy import make_strategy
    from modelyard.training._supervised import SupervisedTask
    from modelyard.training._tensorboard import TensorBoardLog
    from modelyard.training._throughput import Throughput, ThroughputLog
    from modelyard.training._trainer import Trainer, restore
    from modelyard.training._wandb import WandbLog

_LAZY = {
    "CsvLog": "modelyard.training._csv",
    "EarlyStop": "modelyard.training._early_stop",
    "CompiledStep": "modelyard.training._own_loop",
    "ImagePredictions": "modelyard.training._predictions",
    "JsonlLog": "modelyard.training._jsonl",
    "Loop": "modelyard.training._own_loop",
    "Pipeline": "modelyard.training._pipelined",
    "PipelineOptions": "modelyard.training._pipelined",
    "PipelineResult": "modelyard.training._pipelined",
    "ProgressBar": "modelyard.console",
    "ResidentData": "modelyard.training._resident",
    "SupervisedTask": "modelyard.training._supervised",
    "TensorBoardLog": "modelyard.training._tensorboard",
    "Throughput": "modelyard.training._throughput",
    "ThroughputLog": "modelyard.training._throughput",
    "Trainer": "modelyard.training._trainer",
    "WandbLog": "modelyard.training._wandb",
    "evaluate": "modelyard.training._evaluate",
    "predict": "modelyard.training._evaluate",
    "apply_gradients": "modelyard.training._step",
    "average_loss": "modelyard.training._step",
    "loss_scaled": "modelyard.training._step",
    "make_strategy": "modelyard.training._strategy",
    "minimize": "modelyard.training._step",
    "offload_slots": "modelyard.training._offload",
    "predict_images": "modelyard.training._predictions",
    "regularization_loss": "modelyard.training._step",
    "restore": "modelyard.training._trainer",
}

__all__ = [
    "Action",
    "CheckpointSaved",
    "Cluster",
    "CompiledStep",
    "CsvLog",
    "EarlyStop",
    "EvalResult",
    "Evaluated",
    "Event",
    "Goal",
    "ImagePredictions",
    "InputRequest",
    "JsonlLog",
    "Loop",
    "LoopOptions",
    "Pipeline",
    "PipelineOptions",
    "PipelineResult",
    "ProgressBar",
    "ResidentData",
    "RunEnded",
    "RunRecord",
    "RunStarted",
    "StepsDone",
    "Stops",
    "SupervisedTask",
    "Task",
    "TensorBoardLog",
    "Throughput",
    "ThroughputLog",
    "TrainResult",
    "Trainer",
    "TrainerOptions",
    "WandbLog",
    "Watches",
    "apply_gradients",
    "average_loss",
    "evaluate",
    "loss_scaled",
    "make_source",
    "make_strategy",
    "minimize",
    "offload_slots",
    "predict",
    "predict_images",
    "read_record",
    "regularization_loss",
    "restore",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _LAZY, name)
