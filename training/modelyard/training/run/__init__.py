"""A run: its options, its state, what it reports, and what it was made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.lazy import attach
from modelyard.training.run._files import replace_file
from modelyard.training.run._goal import Goal, goal_of
from modelyard.training.run._identity import RunRecord, read_record
from modelyard.training.run._interrupt import InterruptGuard
from modelyard.training.run._messages import first_line
from modelyard.training.run._options import (
    DEFAULT_EPOCHS,
    PRECISIONS,
    LoopOptions,
    TrainerOptions,
    change_options,
    finite_number,
    seed_number,
    whole_number,
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

if TYPE_CHECKING:
    from modelyard.training.run._evaluate import evaluate, predict
    from modelyard.training.run._run_state import check_config
    from modelyard.training.run._trainer import Trainer, restore

__all__ = [
    "Action",
    "CheckpointSaved",
    "DEFAULT_EPOCHS",
    "EvalResult",
    "Evaluated",
    "Event",
    "Goal",
    "InterruptGuard",
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
    "finite_number",
    "first_line",
    "goal_of",
    "make_source",
    "predict",
    "read_record",
    "replace_file",
    "restore",
    "seed_number",
    "whole_number",
]

__getattr__, __dir__ = attach(__name__, extra="training")
