"""What the user writes: tasks, and what their steps call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.lazy import load_attribute

if TYPE_CHECKING:
    from modelyard.training.user._defaults import build
    from modelyard.training.user._describe import describe_batch, describe_models
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
    from modelyard.training.user._step import (
        StepReport,
        apply_gradients,
        average_loss,
        evaluation,
        loss_scaled,
        make_replica_step,
        minimize,
        regularization_loss,
    )
    from modelyard.training.user._supervised import SupervisedTask
    from modelyard.training.user._task import InputRequest, Task

_MODULES = {
    "InputRequest": "modelyard.training.user._task",
    "RemembersArguments": "modelyard.training.user._remember",
    "StepReport": "modelyard.training.user._step",
    "SupervisedTask": "modelyard.training.user._supervised",
    "Task": "modelyard.training.user._task",
    "apply_gradients": "modelyard.training.user._step",
    "arguments_of": "modelyard.training.user._remember",
    "average_loss": "modelyard.training.user._step",
    "build": "modelyard.training.user._defaults",
    "decode": "modelyard.training.user._remember",
    "describe_batch": "modelyard.training.user._describe",
    "describe_models": "modelyard.training.user._describe",
    "encode": "modelyard.training.user._remember",
    "evaluation": "modelyard.training.user._step",
    "find_object": "modelyard.training.user._remember",
    "loss_scaled": "modelyard.training.user._step",
    "make_replica_step": "modelyard.training.user._step",
    "minimize": "modelyard.training.user._step",
    "name_of": "modelyard.training.user._remember",
    "readable": "modelyard.training.user._remember",
    "regularization_loss": "modelyard.training.user._step",
    "same": "modelyard.training.user._remember",
    "without_configs": "modelyard.training.user._remember",
}

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
    "readable",
    "regularization_loss",
    "same",
    "without_configs",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _MODULES, name, extra="training")
