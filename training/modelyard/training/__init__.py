"""The training room: the user owns the step, the library owns the loop.

Importing it is cheap: TensorFlow comes in with the first name that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.lazy import load_attribute
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
    from modelyard.console import ProgressBar
    from modelyard.training.actions import (
        CsvLog,
        EarlyStop,
        ImagePredictions,
        JsonlLog,
        TensorBoardLog,
        Throughput,
        ThroughputLog,
        WandbLog,
        predict_images,
    )
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

_LAZY = {
    "CsvLog": "modelyard.training.actions",
    "EarlyStop": "modelyard.training.actions",
    "CompiledStep": "modelyard.training.loop",
    "ImagePredictions": "modelyard.training.actions",
    "JsonlLog": "modelyard.training.actions",
    "Loop": "modelyard.training.loop",
    "Pipeline": "modelyard.training.distribute",
    "PipelineOptions": "modelyard.training.distribute",
    "PipelineResult": "modelyard.training.distribute",
    "ProgressBar": "modelyard.console",
    "ResidentData": "modelyard.training.loop",
    "SupervisedTask": "modelyard.training.user",
    "TensorBoardLog": "modelyard.training.actions",
    "Throughput": "modelyard.training.actions",
    "ThroughputLog": "modelyard.training.actions",
    "Trainer": "modelyard.training.run",
    "WandbLog": "modelyard.training.actions",
    "evaluate": "modelyard.training.run",
    "predict": "modelyard.training.run",
    "apply_gradients": "modelyard.training.user",
    "average_loss": "modelyard.training.user",
    "loss_scaled": "modelyard.training.user",
    "make_strategy": "modelyard.training.distribute",
    "minimize": "modelyard.training.user",
    "offload_slots": "modelyard.training.distribute",
    "predict_images": "modelyard.training.actions",
    "regularization_loss": "modelyard.training.user",
    "restore": "modelyard.training.run",
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
    return load_attribute(__name__, _LAZY, name, extra="training")
