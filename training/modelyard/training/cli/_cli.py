"""``modelyard train``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from modelyard.console import quiet_libraries
from modelyard.errors import ConfigurationError, ModelyardError
from modelyard.training.actions import WANDB_MODES
from modelyard.training.cli._join import EXAMPLES as _CLUSTER_EXAMPLES
from modelyard.training.cli._join import add_distribution_arguments, join, start_local_cluster
from modelyard.training.run import (
    DEFAULT_EPOCHS,
    LOOP_FORMS,
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


def make_parser() -> argparse.ArgumentParser:
    """The parser of ``modelyard train``."""
    parser = argparse.ArgumentParser(
        prog="modelyard train",
        description="Train a task with its own step in a compiled loop; a run that was stopped goes on.",
        epilog=_EXAMPLES + _CLUSTER_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "task", metavar="TASK", help="name of the task, such as fashion; or the folder of a run, to go on with it"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="ARGUMENT=VALUE",
        help="value for an argument of the task, such as latent=20; may be given more than once",
    )
    parser.add_argument("--full", action="store_true", help="the training of the task's source, where that takes long")
    parser.add_argument("--max-steps", type=int, metavar="N", help="training steps in all, in place of --epochs")
    parser.add_argument(
        "--epochs", type=int, help=f"passes over the data, in all (default: the task's, or {DEFAULT_EPOCHS})"
    )
    parser.add_argument(
        "--eval-every",
        type=int,
        dest="eval_every_steps",
        metavar="STEPS",
        help="evaluate after every STEPS steps (default: after each epoch)",
    )
    parser.add_argument(
        "--eval-steps", type=int, metavar="N", help="batches of each evaluation, always the first ones (default: all)"
    )
    parser.add_argument(
        "--log-every",
        type=int,
        dest="log_every_steps",
        metavar="STEPS",
        help="log training values after every STEPS steps (default: after each device loop)",
    )
    parser.add_argument(
        "--batch-size", type=int, help=f"examples in each step (default: the task's, or {_DEFAULTS.batch_size})"
    )
    parser.add_argument(
        "--eval-batch-size",
        type=int,
        help=f"examples in each step of evaluation (default: the task's, or {_DEFAULTS.eval_batch_size})",
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="of the initial weights and of the order of the data; the same seed gives the same numbers"
        f" (default: {_DEFAULTS.seed})",
    )
    parser.add_argument(
        "--model-dir",
        type=Path,
        metavar="DIR",
        help="folder for checkpoints and logs; a run that finds a checkpoint there goes on from it"
        " (default: runs/TASK)",
    )
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        dest="checkpoint_every_steps",
        metavar="STEPS",
        help="save a checkpoint also after every STEPS steps, not only after each evaluation",
    )
    parser.add_argument(
        "--keep-checkpoints",
        type=int,
        metavar="N",
        help=f"how many of the newest to keep (default: {_DEFAULTS.keep_checkpoints})",
    )
    parser.add_argument(
        "--steps-per-loop",
        type=int,
        metavar="N",
        help=f"steps on the device between two updates of the progress bar (default: {_DEFAULTS.steps_per_loop})",
    )
    _add_loop_arguments(parser)
    _add_action_arguments(parser)
    add_distribution_arguments(parser)
    return parser


def _add_loop_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--loop",
        choices=LOOP_FORMS,
        help="eager: no graph, for debugging; step: one compiled step at a time; loop: many; epoch: a whole epoch on"
        " data in memory, the fastest"
        f" (default: {_DEFAULTS.loop})",
    )
    parser.add_argument(
        "--accumulate-steps",
        type=int,
        metavar="K",
        help=f"micro-batches to cut each batch into (default: {_DEFAULTS.accumulate_steps})",
    )
    parser.add_argument("--clip-norm", type=float, metavar="NORM", help="greatest global norm of the gradients")
    parser.add_argument(
        "--ema-decay", type=float, metavar="DECAY", help="evaluate and export an average of the weights, such as 0.999"
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help=f"what the layers compute in (default: {_DEFAULTS.precision})",
    )
    parser.add_argument("--jit-compile", action="store_true", default=None, help="have XLA compile the training step")
    parser.add_argument(
        "--devices",
        nargs="+",
        metavar="DEVICE",
        help="devices that compute each step, such as GPU:0 GPU:1: each takes its share of the batch",
    )
    parser.add_argument(
        "--prefetch-to-device",
        action="store_true",
        default=None,
        help="copy batches to the first of --devices ahead of time",
    )
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        dest="checkpoint_every_seconds",
        metavar="S",
        help="save a checkpoint also when S seconds have passed",
    )
    parser.add_argument(
        "--keep-best",
        type=goal_of,
        metavar="[-]METRIC",
        help="keep the best evaluation's checkpoint as well: by test_accuracy, or =-test_loss where less is better",
    )
    parser.add_argument(
        "--warm-start", type=Path, metavar="PATH", help="checkpoint or model directory whose models to begin with"
    )


def _add_action_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--early-stop",
        type=goal_of,
        metavar="[-]METRIC",
        help="end the run when this gets no better, such as test_accuracy, or =-test_loss where less is better",
    )
    parser.add_argument(
        "--patience",
        type=int,
        metavar="N",
        help=f"evaluations in a row that may be no better before --early-stop ends the run (default: {_PATIENCE})",
    )
    parser.add_argument("--wandb", metavar="PROJECT", help="log to this project of Weights & Biases")
    parser.add_argument(
        "--wandb-mode",
        choices=WANDB_MODES,
        help="online; offline: to be sent later, by 'wandb sync'; disabled (default: WANDB_MODE, or online)",
    )


def main(argv: list[str]) -> int:
    """Trains a task.

    Args:
        argv: Arguments without the program's name.

    Returns:
        The process's exit code: 0 when all epochs are done, 1 on an error, 2
        on arguments that make no sense, 130 after Ctrl-C. After SIGTERM it
        saves, then raises SystemExit with 143.
    """
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
        task = _task(arguments.task, arguments.set)
        recipe = {**task.recipe, **(task.full_recipe if arguments.full else {})}
        options = record.make_options(model_dir) if record else TrainerOptions(**recipe, model_dir=model_dir)
        names = [field.name for field in fields(TrainerOptions) if field.name != "model_dir"]
        given = {name: getattr(arguments, name, None) for name in names}
        options = change_options(options, {name: value for name, value in given.items() if value is not None})
        wanted = _wanted_actions(arguments, task, model_dir, reports=reports)
        result, drawn = _train(task, options, model_dir, strategy, wanted, reports=reports)
    except ModelyardError as exc:
        sys.stderr.write(f"modelyard train: {exc.message}\n")
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


def _task(name: str, assignments: list[str]) -> Task:
    from modelyard.training.tasks import make_task

    return make_task(name, assignments)


def _wanted_actions(arguments: argparse.Namespace, task: Task, model_dir: Path, *, reports: bool) -> list[Action]:
    """Those that a flag asks for."""
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
        actions.append(
            WandbLog(
                arguments.wandb,
                model_dir / "wandb",
                predictions=lambda: find_predictions(task),
                mode=mode,
            )
        )
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
    lines = [
        f"{result.task.name}: {epochs} epochs, {result.step:,} steps. {numbers}.",
        f"Data: {result.data}.",
        f"Checkpoint: {result.checkpoint}",
        f"Logs: {model_dir / 'log.jsonl'} and {model_dir / 'tensorboard'}",
    ]
    if drawn:
        lines.append(f"Pictures: {', '.join(str(path) for path in drawn)}")
    return "\n".join(lines) + "\n"
