"""Options of a training run."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from modelyard.errors import ConfigurationError
from modelyard.training.loop import LOOP_MODES, LoopMode, LoopName
from modelyard.training.run._goal import Goal, goal_of

DEFAULT_EPOCHS = 10
_COUNTS = (
    "epochs",
    "max_steps",
    "eval_every_steps",
    "eval_steps",
    "log_every_steps",
    "checkpoint_every_steps",
    "batch_size",
    "eval_batch_size",
    "steps_per_loop",
)
Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """What a :class:`Loop` and the trainer have in common.

    Attributes:
        seed: Seed of the initial weights, of the order of the data and of everything random in the model.
        model_dir: Folder for checkpoints (``checkpoints/``) and, where the actions say so, logs. A run that finds a
            checkpoint there goes on from it. None keeps nothing on disk.
        keep_checkpoints: How many of the newest checkpoints to keep.
        async_checkpoints: Writes checkpoints while training goes on, from a copy of the variables in host memory. Not
            with a strategy.
        accumulate_steps: Cuts each replica's batch into that many micro-batches and applies the sum of their gradients
            once: the memory of a small batch, the numbers of the whole one.
        clip_norm: Scales gradients down to this global norm where theirs is greater.
        precision: Keras' dtype policy while the models are built.
        jit_compile: Whether XLA compiles the training step, anew for each size of batch.
        devices: Names of the devices that compute each step, such as ``("GPU:0", "GPU:1")``, without a strategy: each
            takes its share of the batch, in one graph, and the first one has the variables, adds the gradients and
            evaluates. One name puts everything there.
        prefetch_to_device: Whether batches are copied to the first of ``devices`` ahead of time.

    Raises:
        ConfigurationError: A number is none, or out of its range; or two fields do not go together.
    """

    seed: int = 0
    model_dir: Path | None = None
    keep_checkpoints: int = 3
    async_checkpoints: bool = True
    accumulate_steps: int = 1
    clip_norm: float | None = None
    precision: Precision = "float32"
    jit_compile: bool = False
    devices: tuple[str, ...] = ()
    prefetch_to_device: bool = False

    def __post_init__(self) -> None:
        if self.model_dir is not None:
            object.__setattr__(self, "model_dir", Path(self.model_dir))
            # Path has made one slash of two.
            if _URL.match(str(self.model_dir)):
                raise ConfigurationError(
                    f"model_dir (--model-dir) is {self.model_dir}; expected a folder of this machine: checkpoints are "
                    "put in place by renaming, which object stores cannot. Train into a local or mounted folder and "
                    "copy it; exports go to stores themselves (--repository s3://...)."
                )
        devices: Any = self.devices
        if isinstance(devices, str):
            raise ConfigurationError(f"devices is {devices!r}; expected a tuple of names, such as ({devices!r},).")
        object.__setattr__(self, "devices", tuple(devices))
        for name in ("keep_checkpoints", "accumulate_steps"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 1))
        object.__setattr__(self, "seed", seed_number(self.seed))
        object.__setattr__(self, "clip_norm", _above_zero("clip_norm", self.clip_norm))
        _one_of("precision", self.precision, PRECISIONS)
        for first, second, both in (
            ("jit_compile", "accumulate_steps", self.jit_compile and self.accumulate_steps > 1),
            ("jit_compile", "several devices", self.jit_compile and len(self.devices) > 1),
            ("accumulate_steps", "several devices", self.accumulate_steps > 1 and len(self.devices) > 1),
        ):
            if both:
                raise ConfigurationError(f"{first} and {second} do not work together; leave one of them out.")
        if self.prefetch_to_device and not self.devices:
            raise ConfigurationError(
                "prefetch_to_device is set, and devices is empty; name the device in devices (--devices)."
            )

    @property
    def checkpoint_dir(self) -> Path | None:
        """Folder of the checkpoints, below ``model_dir``; None where nothing is kept."""
        return None if self.model_dir is None else self.model_dir / "checkpoints"


@dataclass(frozen=True, kw_only=True)
class TrainerOptions(LoopOptions):
    """How to run the loop; the fields of :class:`LoopOptions`, and these.

    Attributes:
        max_steps: Training steps in all: a resumed run counts those it has done.
        epochs: The same in passes over the training data; 10 where neither is given.
        eval_every_steps: Steps between two evaluations; None for one after each epoch. There is always one after the
            last step.
        eval_steps: The most batches of an evaluation, always the first ones; None for all.
        log_every_steps: Steps between two events :class:`StepsDone`, at which a device loop ends; None for one after
            each device loop.
        batch_size: Examples in each training step, over all replicas and micro-batches.
        eval_batch_size: Examples in each evaluation step.
        steps_per_loop: Steps that run on the device without coming back to Python. More is faster; progress, logs and
            Ctrl-C wait for its end. The numbers are the same for any value.
        checkpoint_every_steps: Steps between checkpoints, beside the one after each evaluation; None for no others.
        checkpoint_every_seconds: Seconds between checkpoints, made at the end of a device loop; None for no others.
        keep_best: Keeps the checkpoint of the best evaluation as well. A string is a goal too: ``test_accuracy``, or
            ``-test_loss`` where less is better.
        warm_start: A checkpoint, or the ``model_dir`` of a run, whose models a run that starts from nothing begins
            with; its optimizers, step and epochs are not taken over.
        loop: ``loop``: ``steps_per_loop`` steps in one compiled function. ``epoch``: the same for a whole epoch, on
            data that stays on the device, see :meth:`Task.resident_data`; the fastest, with an order of the examples
            of its own. ``step``: one compiled step at a time. ``eager``: no graph at all, for debugging.
        ema_decay: Evaluates and exports an exponential moving average of the weights of all models, with this decay,
            such as 0.999, in their place.

    Raises:
        ConfigurationError: A number is none, or out of its range; or two fields do not go together.
    """

    max_steps: int | None = None
    epochs: int | None = None
    eval_every_steps: int | None = None
    eval_steps: int | None = None
    log_every_steps: int | None = None
    batch_size: int = 64
    eval_batch_size: int = 500
    steps_per_loop: int = 100
    checkpoint_every_steps: int | None = None
    checkpoint_every_seconds: float | None = None
    keep_best: Goal | None = None
    warm_start: Path | None = None
    loop: LoopName = "loop"
    ema_decay: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warm_start is not None:
            object.__setattr__(self, "warm_start", Path(self.warm_start))
        if self.keep_best is not None:
            object.__setattr__(self, "keep_best", goal_of(self.keep_best))
        if self.epochs is not None and self.max_steps is not None:
            raise ConfigurationError(
                f"epochs is {self.epochs} and max_steps is {self.max_steps}; expected one of the two, "
                "--epochs or --max-steps."
            )
        for name in _COUNTS:
            if getattr(self, name) is not None or name in ("batch_size", "eval_batch_size", "steps_per_loop"):
                object.__setattr__(self, name, whole_number(name, getattr(self, name), 1))
        for name in ("checkpoint_every_steps", "checkpoint_every_seconds", "keep_best"):
            if getattr(self, name) is not None and self.model_dir is None:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)} but model_dir is None; "
                    "set model_dir to the folder that shall hold the checkpoints."
                )
        seconds = _above_zero("checkpoint_every_seconds", self.checkpoint_every_seconds)
        object.__setattr__(self, "checkpoint_every_seconds", seconds)
        decay: Any = self.ema_decay
        if decay is not None:
            if not _is_number(decay) or not 0 <= decay < 1:
                raise ConfigurationError(f"ema_decay is {decay!r}; expected a number from 0 to below 1.")
            object.__setattr__(self, "ema_decay", float(decay))
        _one_of("loop", self.loop, tuple(LOOP_MODES))
        if self.jit_compile and not self.mode.compiled:
            raise ConfigurationError(f"jit_compile and loop={self.loop!r} do not work together; leave one of them out.")

    @property
    def mode(self) -> LoopMode:
        """What ``loop`` stands for."""
        return LOOP_MODES[self.loop]

    def total_steps(self, steps_per_epoch: int) -> int:
        """Steps of the whole run, by the number of batches of an epoch."""
        return self.max_steps or (self.epochs or DEFAULT_EPOCHS) * steps_per_epoch


_Options = TypeVar("_Options", bound=LoopOptions)


def change_options(options: _Options, changes: Mapping[str, Any]) -> _Options:
    """The same options, but for some."""
    if not isinstance(options, LoopOptions):
        raise ConfigurationError(f"options is a {type(options).__name__}; expected TrainerOptions(...), or its fields.")
    known = [field.name for field in fields(options)]
    for name in changes:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}."
            raise ConfigurationError(f"{type(options).__name__} has no field {name!r}; {hint}")
    if not changes:
        return options
    length = {"max_steps", "epochs"} & set(changes)
    return replace(options, **{**(dict.fromkeys(("max_steps", "epochs")) if length else {}), **changes})


# Numbers of numpy are taken, and become Python's: run.json has no others, and TensorFlow's loops take no others.


def _is_number(value: object) -> bool:
    return isinstance(value, Real)


def _above_zero(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if not _is_number(value) or not (value > 0 and math.isfinite(value)):
        raise ConfigurationError(f"{name} is {value!r}; expected a number above 0.")
    return float(value)


def finite_number(name: str, value: Any, least: float) -> float:
    if not _is_number(value) or not least <= value < math.inf:
        raise ConfigurationError(f"{name} is {value!r}; expected a number >= {least}.")
    return float(value)


def seed_number(value: Any) -> int:
    seed = whole_number("seed", value, 0)
    if seed >= 1 << 32:
        raise ConfigurationError(f"seed is {seed}; expected a number below 2**32.")
    return seed


def whole_number(name: str, value: Any, least: int) -> int:
    """A whole number, also one such as 1e4."""
    if not _is_number(value) or value < least or value % 1 != 0:
        raise ConfigurationError(f"{name} is {value!r}; expected a whole number >= {least}.")
    return int(value)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigurationError(f"{name} is {value!r}; expected one of {', '.join(known)}.")
