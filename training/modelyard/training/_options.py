"""Options of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from modelyard.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """How to run the loop.

    Attributes:
        epochs: Passes over the training data, in all: a resumed run counts
            those it has done.
        batch_size: Examples in each training step.
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

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "eval_batch_size", "steps_per_loop", "keep_checkpoints"):
            _at_least(name, getattr(self, name), 1)
        _at_least("seed", self.seed, 0)
        if self.seed >= 1 << 32:
            raise ConfigurationError(f"seed is {self.seed}; expected a number below 2**32.")
        if self.checkpoint_every_steps is not None:
            _at_least("checkpoint_every_steps", self.checkpoint_every_steps, 1)
            if self.model_dir is None:
                raise ConfigurationError(
                    f"checkpoint_every_steps is {self.checkpoint_every_steps} but model_dir is None; "
                    "set model_dir to the folder that shall hold the checkpoints."
                )

    @property
    def checkpoint_dir(self) -> Path | None:
        """Folder of the checkpoints, below ``model_dir``; None where nothing is kept."""
        return None if self.model_dir is None else self.model_dir / "checkpoints"


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigurationError(f"{name} is {value}; expected a number >= {least}.")
