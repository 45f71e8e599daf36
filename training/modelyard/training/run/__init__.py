"""A run: its options, its state, what it reports, and what it was made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.lazy import load_attribute

if TYPE_CHECKING:
    from modelyard.training.run._evaluate import evaluate, predict
    from modelyard.training.run._goal import Goal, goal_of
    from modelyard.training.run._identity import RunRecord, need_record, read_record
    from modelyard.training.run._interrupt import InterruptGuard
    from modelyard.training.run._messages import first_line
    from modelyard.training.run._options import (
        DEFAULT_EPOCHS,
        LOOP_FORMS,
        PRECISIONS,
        LoopOptions,
        TrainerOptions,
        change_options,
    )
    from modelyard.training.run._results import (
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
        curve_panels,
        make_source,
    )
    from modelyard.training.run._run_state import check_config
    from modelyard.training.run._trainer import Trainer, restore

_MODULES = {
    "Action": "modelyard.training.run._results",
    "CheckpointSaved": "modelyard.training.run._results",
    "DEFAULT_EPOCHS": "modelyard.training.run._options",
    "EvalResult": "modelyard.training.run._results",
    "Evaluated": "modelyard.training.run._results",
    "Event": "modelyard.training.run._results",
    "Goal": "modelyard.training.run._goal",
    "InterruptGuard": "modelyard.training.run._interrupt",
    "LOOP_FORMS": "modelyard.training.run._options",
    "LoopOptions": "modelyard.training.run._options",
    "PRECISIONS": "modelyard.training.run._options",
    "RunEnded": "modelyard.training.run._results",
    "RunRecord": "modelyard.training.run._identity",
    "RunStarted": "modelyard.training.run._results",
    "StepsDone": "modelyard.training.run._results",
    "Stops": "modelyard.training.run._results",
    "TrainResult": "modelyard.training.run._results",
    "Trainer": "modelyard.training.run._trainer",
    "TrainerOptions": "modelyard.training.run._options",
    "Watches": "modelyard.training.run._results",
    "change_options": "modelyard.training.run._options",
    "check_config": "modelyard.training.run._run_state",
    "curve_panels": "modelyard.training.run._results",
    "evaluate": "modelyard.training.run._evaluate",
    "first_line": "modelyard.training.run._messages",
    "goal_of": "modelyard.training.run._goal",
    "make_source": "modelyard.training.run._results",
    "need_record": "modelyard.training.run._identity",
    "predict": "modelyard.training.run._evaluate",
    "read_record": "modelyard.training.run._identity",
    "restore": "modelyard.training.run._trainer",
}

__all__ = [
    "Action",
    "CheckpointSaved",
    "DEFAULT_EPOCHS",
    "EvalResult",
    "Evaluated",
    "Event",
    "Goal",
    "InterruptGuard",
    "LOOP_FORMS",
    "LoopOptions",
    "PRECISIONS",
    "RunEnded",
    "RunRecord",
    "RunStarted",
    "StepsDone",
    "Stops",
    "TrainResult",
    "Trainer",
    "TrainerOptions",
    "Watches",
    "change_options",
    "check_config",
    "curve_panels",
    "evaluate",
    "first_line",
    "goal_of",
    "make_source",
    "need_record",
    "predict",
    "read_record",
    "restore",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _MODULES, name, extra="training")
