"""``modelyard train``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from modelyard.console import make_command, quiet_libraries, write_error
from modelyard.errors import ConfigurationError, ModelyardError
from modelyard.training.actions import WANDB_MODES
from modelyard.training.cli._command import Flag, add_assignments, add_flags
from modelyard.training.cli._join import EXAMPLES as _CLUSTER_EXAMPLES
from modelyard.training.cli._join import add_distribution_arguments, join, start_local_cluster
from modelyard.training.loop import LOOP_MODES
from modelyard.training.run import (
    DEFAULT_EPOCHS,
    PRECISIONS,
    Action,
    TrainerOptions,
    TrainResult,
    change_options,
    goal_of,
    read_record,
)
from modelyard.training.user import Task

if TYPE_CHECKING:
    import tensorflow as tf

_DEFAULTS = TrainerOptions()
_PATIENCE = 3
_EXAMPLES = """\
examples:
  modelyard train fashion
      Ten epochs of Fashion-MNIST; checkpoints and logs go to runs/fashion.
  modelyard train fashion --epochs 3 --model-dir /tmp/quick --seed 7
      A shorter run, elsewhere, with other initial weights and another order.
  modelyard train fashion --max-steps 5000 --eval-every 500 --eval-steps 20
      By steps: ten evaluations, each of the first 20 batches.
  modelyard train runs/fashion --max-steps 8000
      Goes on with a run: its task, arguments and options are in runs/fashion/run.json.
  modelyard train fashion --checkpoint-every 200
      Loses at most 200 steps when it is killed. The same command goes on from
      there and ends with the same numbers as a run that was never stopped.
  modelyard train fashion --loop epoch --ema-decay 0.999 --keep-best test_accuracy
      The fastest loop, on data in memory; evaluates and exports an average of
      the weights, and keeps the best epoch's checkpoint beside the newest.
  modelyard train fashion --epochs 50 --early-stop=-test_loss --patience 5 --wandb shop
      Ends when five epochs in a row were no better; logs to Weights & Biases.
  MODELYARD_DATA=subset modelyard train fashion --epochs 2
      Seconds, not minutes: on the small subset that ships with modelyard.
"""


_FLAGS: tuple[Flag, ...] = (
    ("--full", None, None, "the training of the task's source, where that takes long"),
    ("--max-steps", int, "N", "training steps in all, in place of --epochs"),
    ("--epochs", int, None, f"passes over the data, in all (default: the task's, or {DEFAULT_EPOCHS})"),
    ("--eval-every", int, "STEPS", "evaluate after every STEPS steps (default: after each epoch)"),
    ("--eval-steps", int, "N", "batches of each evaluation, always the first ones (default: all)"),
    ("--log-every", int, "STEPS", "log training values after every STEPS steps (default: each device loop)"),
    ("--batch-size", int, None, f"examples in each step (default: the task's, or {_DEFAULTS.batch_size})"),
    ("--eval-batch-size", int, None, f"the same of evaluation (default: the task's, or {_DEFAULTS.eval_batch_size})"),
    ("--seed", int, None, f"of initial weights and order; the same gives the same numbers (default: {_DEFAULTS.seed})"),
    (
        "--model-dir",
        Path,
        "DIR",
        "folder for checkpoints and logs; a run goes on from a checkpoint that it finds there (default: runs/TASK)",
    ),
    ("--checkpoint-every", int, "STEPS", "save a checkpoint after every STEPS steps, too, not only after evaluations"),
    ("--checkpoint-seconds", float, "S", "save a checkpoint also when S seconds have passed"),
    ("--keep-checkpoints", int, "N", f"how many of the newest to keep (default: {_DEFAULTS.keep_checkpoints})"),
    (
        "--keep-best",
        goal_of,
        "[-]METRIC",
        "keep the best evaluation's checkpoint as well: by test_accuracy, or =-test_loss where less is better",
    ),
    ("--warm-start", Path, "PATH", "checkpoint or model directory whose models to begin with"),
    (
        "--steps-per-loop",
        int,
        "N",
        f"steps on the device between two updates of the progress bar (default: {_DEFAULTS.steps_per_loop})",
    ),
    ("--accumulate-steps", int, "K", f"micro-batches of each batch (default: {_DEFAULTS.accumulate_steps})"),
    ("--clip-norm", float, "NORM", "greatest global norm of the gradients"),
    ("--ema-decay", float, "DECAY", "evaluate and export an average of the weights, such as 0.999"),
    ("--jit-compile", None, None, "have XLA compile the training step"),
    ("--prefetch-to-device", None, None, "copy batches to the first of --devices ahead of time"),
    (
        "--early-stop",
        goal_of,
        "[-]METRIC",
        "end the run when this gets no better, such as test_accuracy, or =-test_loss where less is better",
    ),
    ("--patience", int, "N", f"evaluations in a row that may be no better, for --early-stop (default: {_PATIENCE})"),
    ("--wandb", str, "PROJECT", "log to this project of Weights & Biases"),
)


def make_parser() -> argparse.ArgumentParser:
    """The parser of ``modelyard train``."""
    description = "Train a task with its own step in a compiled loop; a run that was stopped goes on."
    parser = make_command("modelyard train", description, _EXAMPLES + _CLUSTER_EXAMPLES)
    parser.add_argument(
        "task",
        metavar="TASK",
        help="name of the task, such as fashion, or package.module:Class; or the folder of a run, to go on with it",
    )
    add_assignments(parser, "value for an argument of the task, such as latent=20")
    add_flags(
        parser,
        _FLAGS,
        eval_every="eval_every_steps",
        log_every="log_every_steps",
        checkpoint_every="checkpoint_every_steps",
        checkpoint_seconds="checkpoint_every_seconds",
    )
    modes = "; ".join(f"{mode.name}: {mode.summary}" for mode in LOOP_MODES.values())
    parser.add_argument("--loop", choices=LOOP_MODES, help=f"{modes} (default: {_DEFAULTS.loop})")
    computed = f"what the layers compute in (default: {_DEFAULTS.precision})"
    parser.add_argument("--precision", choices=PRECISIONS, help=computed)
    parser.add_argument(
        "--devices",
        nargs="+",
        metavar="DEVICE",
        help="devices that compute each step, such as GPU:0 GPU:1: each takes its share of the batch",
    )
    parser.add_argument(
        "--wandb-mode",
        choices=WANDB_MODES,
        help="online; offline: to be sent later, by 'wandb sync'; disabled (default: WANDB_MODE, or online)",
    )
    add_distribution_arguments(parser)
    return parser


def main(argv: list[str]) -> int:
    """Trains a task."""
    quiet_libraries()
    arguments = make_parser().parse_args(argv)
    model_dir = Path("runs")
    try:
        record = read_record(Path(arguments.task))
        for flag, useless in (("--model-dir", arguments.model_dir is not None), ("--full", arguments.full)):
            if record is not None and useless:
                raise ConfigurationError(f"{flag} is for a task's name; {arguments.task} is the folder of a run.")
        model_dir = Path(arguments.task) if record else arguments.model_dir or model_dir / arguments.task
        code = start_local_cluster(arguments, argv)
        if code is not None:
            return code
        # Before anything else that uses TensorFlow.
        strategy, reports = join(arguments)
        from modelyard.training.tasks import make_task

        task = make_task(arguments.task, arguments.assignments)
        recipe = {**task.recipe, **(task.full_recipe if arguments.full else {})}
        default = TrainerOptions(model_dir=model_dir)
        options = record.make_options(model_dir) if record else change_options(default, recipe)
        names = [field.name for field in fields(TrainerOptions) if field.name != "model_dir"]
        given = {name: getattr(arguments, name, None) for name in names}
        options = change_options(options, {name: value for name, value in given.items() if value is not None})
        wanted = _wanted_actions(arguments, task, model_dir, reports=reports)
        result, drawn = _train(task, options, model_dir, strategy, wanted, reports=reports)
    except ModelyardError as exc:
        write_error("train", exc.message)
        return 2 if isinstance(exc, ConfigurationError) else 1
    except KeyboardInterrupt:
        sys.stderr.write(f"modelyard train: stopped. The same command goes on from the checkpoint in {model_dir}.\n")
        return 130
    except SystemExit:
        sys.stderr.write(f"modelyard train: terminated. The same command goes on from the checkpoint in {model_dir}.\n")
        raise
    if reports:
        sys.stdout.write(_summary(result, model_dir, drawn))
    return 0


def _wanted_actions(arguments: argparse.Namespace, task: Task, model_dir: Path, *, reports: bool) -> list[Action]:
    """Those that flags name."""
    from modelyard.training.actions import EarlyStop, WandbLog, find_predictions

    goal = arguments.early_stop
    for flag, needs, given in (
        ("--patience", "--early-stop", arguments.patience is not None and goal is None),
        ("--wandb-mode", "--wandb", arguments.wandb_mode is not None and arguments.wandb is None),
    ):
        if given:
            raise ConfigurationError(f"{flag} says something about {needs}, which is not given.")
    actions: list[Action] = []
    if goal is not None:
        actions.append(EarlyStop(goal, patience=_PATIENCE if arguments.patience is None else arguments.patience))
    if arguments.wandb is not None and reports:
        mode = arguments.wandb_mode or os.environ.get("WANDB_MODE", WANDB_MODES[0])
        if mode not in WANDB_MODES:
            raise ConfigurationError(f"WANDB_MODE is {mode!r}; expected {', '.join(WANDB_MODES)}.")
        folder = model_dir / "wandb"
        actions.append(WandbLog(arguments.wandb, folder, predictions=lambda: find_predictions(task), mode=mode))
    return actions


def _train(
    task: Task,
    options: TrainerOptions,
    model_dir: Path,
    strategy: tf.distribute.Strategy | None,
    wanted: Sequence[Action],
    *,
    reports: bool,
) -> tuple[TrainResult, list[Path]]:
    from modelyard.training import ProgressBar
    from modelyard.training.actions import CsvLog, JsonlLog, TensorBoardLog, ThroughputLog
    from modelyard.training.run import Trainer
    from modelyard.training.tasks import PictureLog, draw_run

    if not reports:
        return Trainer(task, options, tuple(wanted), strategy=strategy).run(), []
    actions: tuple[Action, ...] = (
        ProgressBar(),
        JsonlLog(model_dir / "log.jsonl"),
        CsvLog(model_dir / "epochs.csv"),
        TensorBoardLog(model_dir / "tensorboard", histograms=task),
        ThroughputLog(model_dir / "throughput.json"),
        PictureLog(task, model_dir / "pictures"),
        *wanted,
    )
    result = Trainer(task, options, actions, strategy=strategy).run()
    return result, draw_run(task, result, model_dir / "pictures")


def _summary(result: TrainResult, model_dir: Path, drawn: list[Path]) -> str:
    numbers = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in sorted(result.metrics.items()))
    epochs = result.history[-1].epoch if result.history else 0
    passes = f"{epochs} epoch{'s' * (epochs != 1)}"
    lines = [
        f"{result.task.name}: {passes}, {result.step:,} steps. {numbers}.",
        f"Data: {result.data}.",
        f"Checkpoint: {result.checkpoint}",
        f"Logs: {model_dir / 'log.jsonl'} and {model_dir / 'tensorboard'}",
    ]
    if result.resumed_from == result.step:
        lines.insert(
            0, f"Already at step {result.step:,}; nothing to train. More --max-steps or --epochs go on from it."
        )
    elif result.resumed_from:
        lines[0] += f" Went on from step {result.resumed_from:,}."
    if drawn:
        lines.append(f"Pictures: {', '.join(str(path) for path in drawn)}")
    return "\n".join(lines) + "\n"
