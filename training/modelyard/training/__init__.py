"""The training room: the user owns the step, the library owns the loop.

Importing it is cheap: TensorFlow comes in with the first name that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.console import ProgressBar
from modelyard.lazy import attach
from modelyard.training.actions import CsvLog, EarlyStop, JsonlLog, Throughput, ThroughputLog, WandbLog
from modelyard.training.distribute import Cluster
from modelyard.training.run import (
    Action,
    CheckpointSaved,
    EvalResult,
    Evaluated,
    Event,
    Goal,
    LoopOptions,
    RunEnded,
    RunRecord,
    RunStarted,
    StepsDone,
    Stops,
    TrainerOptions,
    TrainResult,
    Watches,
    make_source,
    read_record,
)
from modelyard.training.user import InputRequest, Task

if TYPE_CHECKING:
    from modelyard.training.actions import ImagePredictions, TensorBoardLog, predict_images
    from modelyard.training.distribute import Pipeline, PipelineOptions, PipelineResult, make_strategy, offload_slots
    from modelyard.training.loop import CompiledStep, Loop, ResidentData
    from modelyard.training.run import Trainer, evaluate, predict, restore
    from modelyard.training.user import (
        SupervisedTask,
        apply_gradients,
        average_loss,
        loss_scaled,
        minimize,
        regularization_loss,
    )

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

__getattr__, __dir__ = attach(__name__, extra="training")
