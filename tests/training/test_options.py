from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from modelyard.errors import ConfigurationError
from modelyard.training import EarlyStop, Goal, Trainer, TrainerOptions
from tests.training.toy_task import ToyTask


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs is 0; expected a whole number >= 1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"eval_batch_size": -1}, "eval_batch_size is -1"),
        ({"steps_per_loop": 0}, "steps_per_loop is 0"),
        ({"keep_checkpoints": 0}, "keep_checkpoints is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1 << 32}, "below 2"),
        ({"checkpoint_every_steps": 0, "model_dir": Path("x")}, "checkpoint_every_steps is 0"),
        ({"checkpoint_every_steps": 5}, "model_dir is None"),
        ({"steps_per_loop": 2.5}, "steps_per_loop is 2.5; expected a whole number >= 1"),
        ({"max_steps": float("inf")}, "max_steps is inf; expected a whole number"),
        ({"eval_steps": float("nan")}, "eval_steps is nan; expected a whole number"),
        ({"batch_size": "32"}, "batch_size is '32'; expected a whole number >= 1"),
        ({"batch_size": None}, "batch_size is None; expected a whole number >= 1"),
        ({"seed": None}, "seed is None; expected a whole number >= 0"),
        ({"devices": "CPU:0"}, r"devices is 'CPU:0'; expected a tuple of names, such as \('CPU:0',\)"),
        ({"model_dir": "s3://bucket/run"}, r"model_dir \(--model-dir\) is s3:/bucket/run; expected a folder"),
    ],
)
def test_numbers_out_of_range_are_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TrainerOptions(**options)


def test_whole_floats_and_numbers_of_numpy_are_taken(tmp_path: Path) -> None:
    whole: Any = {"max_steps": 1e1, "eval_steps": 2.0, "batch_size": np.float32(4), "seed": np.int64(3)}
    given: Any = {"clip_norm": np.float32(2), "ema_decay": np.float32(0.5), **whole}
    options = TrainerOptions(model_dir=tmp_path, **given)
    values = (options.max_steps, options.eval_steps, options.batch_size, options.seed)
    assert (values, {type(value) for value in values}) == ((10, 2, 4, 3), {int})
    assert (type(options.clip_norm), type(options.ema_decay)) == (float, float)
    # run.json, the seeds of Keras and the loops on the device take them.
    assert Trainer(ToyTask(), replace(options, clip_norm=None)).run().step == 10


def test_a_goal_may_be_its_text(tmp_path: Path) -> None:
    options = TrainerOptions(model_dir=tmp_path, keep_best="-test_loss")  # type: ignore[arg-type]
    assert options.keep_best == EarlyStop("-test_loss", patience=1).goal == Goal(metric="test_loss", mode="min")
    with pytest.raises(ConfigurationError, match="The goal is True; expected a Goal, or a string such as"):
        TrainerOptions(model_dir=tmp_path, keep_best=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("actions", [keras.callbacks.EarlyStopping(), [keras.callbacks.EarlyStopping()]])
def test_what_is_no_action_is_refused_by_its_type(actions: Any) -> None:
    with pytest.raises(ConfigurationError, match="actions has a EarlyStopping; expected functions of an event"):
        Trainer(ToyTask(), actions=actions)


def test_options_of_another_type_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"options is a dict; expected TrainerOptions\(...\), or its fields"):
        Trainer(ToyTask(), {"epochs": 1})  # type: ignore[arg-type]


def test_checkpoints_are_below_the_model_dir() -> None:
    assert TrainerOptions(model_dir=Path("runs/x")).checkpoint_dir == Path("runs/x/checkpoints")
    assert TrainerOptions().checkpoint_dir is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate_steps": 0}, "accumulate_steps is 0"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0; expected a number above 0"),
        ({"clip_norm": float("inf")}, "clip_norm is inf"),
        ({"clip_norm": "1"}, "clip_norm is '1'; expected a number above 0"),
        ({"ema_decay": "0.9"}, "ema_decay is '0.9'; expected a number from 0 to below 1"),
        ({"ema_decay": 1.0}, "ema_decay is 1.0; expected a number from 0 to below 1"),
        ({"loop": "graph"}, "loop is 'graph'; expected one of eager, step, loop, epoch"),
        ({"precision": "float16"}, "precision is 'float16'; expected one of float32, mixed_bfloat16, mixed_float16"),
        ({"checkpoint_every_seconds": 5.0}, "checkpoint_every_seconds is 5.0 but model_dir is None"),
        ({"keep_best": Goal()}, "keep_best is .* but model_dir is None"),
        ({"checkpoint_every_seconds": -1.0, "model_dir": Path("x")}, "checkpoint_every_seconds is -1.0"),
    ],
)
def test_options_of_the_loop_that_make_no_sense_are_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TrainerOptions(**options)
