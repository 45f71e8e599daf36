"""What the user writes: tasks, and what their steps call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.lazy import attach
from modelyard.training.user._remember import (
    RemembersArguments,
    arguments_of,
    decode,
    encode,
    find_object,
    name_of,
    readable,
    same,
    without_configs,
)
from modelyard.training.user._task import InputRequest, Task, need_task

if TYPE_CHECKING:
    from modelyard.training.user._defaults import build
    from modelyard.training.user._describe import describe_batch, describe_models
    from modelyard.training.user._replica_step import StepReport, make_replica_step
    from modelyard.training.user._step import (
        apply_gradients,
        average_loss,
        evaluation,
        loss_scaled,
        minimize,
        regularization_loss,
    )
    from modelyard.training.user._supervised import SupervisedTask

__all__ = [
    "InputRequest",
    "RemembersArguments",
    "StepReport",
    "SupervisedTask",
    "Task",
    "apply_gradients",
    "arguments_of",
    "average_loss",
    "build",
    "decode",
    "describe_batch",
    "describe_models",
    "encode",
    "evaluation",
    "find_object",
    "loss_scaled",
    "make_replica_step",
    "minimize",
    "name_of",
    "need_task",
    "readable",
    "regularization_loss",
    "same",
    "without_configs",
]

__getattr__, __dir__ = attach(__name__, extra="training")
