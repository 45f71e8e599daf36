"""Options of a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modelyard.errors import ConfigurationError
from modelyard.training._goal import Goal

LOOP_FORMS = ("eager", "step", "loop", "epoch")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """How to run the loop.

    Attributes:
        epochs: Passes over the training data, in all: a resumed run counts
            those it has done.
        batch_size: Examples in each training step, over all replicas and micro-batches.
        eval_batch_size: Examples in each evaluation step.
        steps_per_loop: Steps that run on the device without coming back to
            Python. More is faster; progress, logs and Ctrl-C wait for its end.
            The numbers are the same for any value.
        seed: Seed of the initial weights, of the order of the data and of
            everything random in the model.
        model_dir: Folder for checkpoints (``checkpoints/``) and, where the
            actions say so, logs. A run that finds a checkpoint there goes on
            from it. None keeps nothing on disk.
        checkpoint_every_steps: Steps between checkpoints inside an epoch; None
            for one checkpoint at the end of each epoch, which is always made.
        keep_checkpoints: How many of the newest checkpoints to keep.
        checkpoint_every_seconds: Seconds between checkpoints inside an epoch,
            made at the end of the device loop in which they are over; None for
            no such checkpoints.
        keep_best: Keeps the checkpoint of the best epoch as well.
        async_checkpoints: Writes checkpoints while training goes on, from a
            copy of the variables in host memory. Not with a strategy.
        warm_start: A checkpoint, or the ``model_dir`` of a run, whose models a
            run that starts from nothing begins with; its optimizers, step and
            epochs are not taken over.
        loop: ``loop``: ``steps_per_loop`` steps in one compiled function.
            ``epoch``: the same for a whole epoch, on data that stays on the
            device, see :meth:`Task.resident_data`; the fastest, for data sets
            that fit, with an order of the examples of its own. ``step``: one
            compiled step at a time. ``eager``: no graph at all, for debugging.
        accumulate_steps: Cuts each replica's batch into that many micro-batches
            and applies the sum of their gradients once: the memory of a small
            batch, the numbers of the whole one.
        clip_norm: Scales gradients down to this global norm where theirs is greater.
        ema_decay: Evaluates and exports an exponential moving average of the
            weights of all models, with this decay, such as 0.999, in their place.
        precision: Keras' dtype policy while the task is built.

    Raises:
        ConfigurationError: A number is out of its range.
    """

    epochs: int = 10
    batch_size: int = 64
    eval_batch_size: int = 500
    steps_per_loop: int = 100
    seed: int = 0
    model_dir: Path | None = None
    checkpoint_every_steps: int | None = None
    keep_checkpoints: int = 3
    checkpoint_every_seconds: float | None = None
    keep_best: Goal | None = None
    async_checkpoints: bool = True
    warm_start: Path | None = None
    loop: Literal["eager", "step", "loop", "epoch"] = "loop"
    accumulate_steps: int = 1
    clip_norm: float | None = None
    ema_decay: float | None = None
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"

    def __post_init__(self) -> None:
        for name in ("model_dir", "warm_start"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, Path(getattr(self, name)))
        for name in (
            "epochs",
            "batch_size",
            "eval_batch_size",
            "steps_per_loop",
            "keep_checkpoints",
            "accumulate_steps",
        ):
            _at_least(name, getattr(self, name), 1)
        _at_least("seed", self.seed, 0)
        if self.seed >= 1 << 32:
            raise ConfigurationError(f"seed is {self.seed}; expected a number below 2**32.")
        if self.checkpoint_every_steps is not None:
            _at_least("checkpoint_every_steps", self.checkpoint_every_steps, 1)
        for name in ("checkpoint_every_steps", "checkpoint_every_seconds", "keep_best"):
            if getattr(self, name) is not None and self.model_dir is None:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)} but model_dir is None; "
                    "set model_dir to the folder that shall hold the checkpoints."
                )
        for name in ("checkpoint_every_seconds", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigurationError(f"{name} is {value}; expected a number above 0.")
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise ConfigurationError(f"ema_decay is {self.ema_decay}; expected a number from 0 to below 1.")
        for name, known in (("loop", LOOP_FORMS), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise ConfigurationError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(known)}.")

    @property
    def checkpoint_dir(self) -> Path | None:
        """Folder of the checkpoints, below ``model_dir``; None where nothing is kept."""
        return None if self.model_dir is None else self.model_dir / "checkpoints"


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigurationError(f"{name} is {value}; expected a number >= {least}.")
