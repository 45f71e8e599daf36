"""The training room: the user owns the step, the library owns the loop.

Importing it is cheap: TensorFlow comes in with the first name that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.training._goal import Goal
from modelyard.training._lazy import load_attribute
from modelyard.training._options import TrainerOptions
from modelyard.training._results import Action, EpochResult, Event, TrainResult
from modelyard.training._task import InputRequest, Task

if TYPE_CHECKING:
    from modelyard.training._jsonl import JsonlLog
    from modelyard.training._offload import offload_slots
    from modelyard.training._pipelined import Pipeline, PipelineOptions, PipelineResult
    from modelyard.training._progress import ProgressBar
    from modelyard.training._resident import ResidentData
    from modelyard.training._step import apply_gradients, average_loss, loss_scaled, minimize, regularization_loss
    from modelyard.training._tensorboard import TensorBoardLog
    from modelyard.training._trainer import Trainer, restore

_LAZY = {
    "JsonlLog": "modelyard.training._jsonl",
    "Pipeline": "modelyard.training._pipelined",
    "PipelineOptions": "modelyard.training._pipelined",
    "PipelineResult": "modelyard.training._pipelined",
    "ProgressBar": "modelyard.training._progress",
    "ResidentData": "modelyard.training._resident",
    "TensorBoardLog": "modelyard.training._tensorboard",
    "Trainer": "modelyard.training._trainer",
    "apply_gradients": "modelyard.training._step",
    "average_loss": "modelyard.training._step",
    "loss_scaled": "modelyard.training._step",
    "minimize": "modelyard.training._step",
    "offload_slots": "modelyard.training._offload",
    "regularization_loss": "modelyard.training._step",
    "restore": "modelyard.training._trainer",
}

__all__ = [
    "Action",
    "EpochResult",
    "Event",
    "Goal",
    "InputRequest",
    "JsonlLog",
    "Pipeline",
    "PipelineOptions",
    "PipelineResult",
    "ProgressBar",
    "ResidentData",
    "Task",
    "TensorBoardLog",
    "TrainResult",
    "Trainer",
    "TrainerOptions",
    "apply_gradients",
    "average_loss",
    "loss_scaled",
    "minimize",
    "offload_slots",
    "regularization_loss",
    "restore",
]


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _LAZY, name)
