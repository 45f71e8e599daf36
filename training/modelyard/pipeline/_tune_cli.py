"""``modelyard tune``: a search, and the export of its best trial."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelyard.artifact import check_model_name
from modelyard.console import quiet_libraries
from modelyard.errors import ConfigurationError, ModelyardError

if TYPE_CHECKING:
    from modelyard.training.tune import SearchResult, TuneOptions

_EXAMPLES = """\
examples:
  modelyard tune fashion
      The task's own search space; trials, plot and exported model go to runs/tune/fashion.
  modelyard tune fashion --trials 30 --jobs 2 --float learning_rate=1e-4:1e-1:log --choice batch_size=32,64,128
      What to search: arguments of the task, and options of training such as batch_size, ema_decay, clip_norm.
  modelyard tune mypackage.tasks:MyTask --int layers=1:4 --set units=64 --metric test_loss --direction minimize
  The same command goes on with a search that was stopped or killed; with more --trials it searches on.
"""
_VERIFY = 512
_EXPORTED = "exported.json"


def make_parser() -> argparse.ArgumentParser:
    """The parser of ``modelyard tune``."""
    parser = argparse.ArgumentParser(
        prog="modelyard tune",
        description="Search for good hyperparameters with Optuna: parallel trials, bad ones ended early, the best "
        "exported. A search that was killed goes on.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", metavar="TASK", help="name of the task, such as fashion, or package.module:Class")
    number = "(default: %(default)s)"
    parser.add_argument("--trials", type=int, default=20, metavar="N", help=f"trials in all {number}")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help=f"processes, one trial at a time each {number}"
    )
    parser.add_argument("--epochs", type=int, default=5, metavar="N", help=f"epochs of a whole trial {number}")
    for kind, form, what in (
        ("float", "NAME=LOW:HIGH[:log]", "a number to search"),
        ("int", "NAME=LOW:HIGH[:log]", "a whole number to search"),
        ("choice", "NAME=A,B,...", "a choice to search"),
    ):
        parser.add_argument(
            f"--{kind}", action="append", default=[], metavar=form, help=f"{what}; may be given more than once"
        )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="ARGUMENT=VALUE",
        help="value for an argument of the task that stays the same; may be given more than once",
    )
    parser.add_argument("--metric", default="test_accuracy", help=f"what to optimize {number}")
    parser.add_argument("--direction", choices=("maximize", "minimize"), default="maximize", help=number)
    parser.add_argument(
        "--pruner", choices=("median", "hyperband", "none"), default="median", help=f"which trials end early {number}"
    )
    parser.add_argument(
        "--startup-trials", type=int, default=4, metavar="N", help=f"trials at random, none of them pruned {number}"
    )
    parser.add_argument("--seed", type=int, default=0, help=f"of the search and of every training {number}")
    parser.add_argument("--study-dir", type=Path, metavar="DIR", help="folder of the search (default: runs/tune/TASK)")
    parser.add_argument(
        "--repository",
        type=Path,
        metavar="DIR",
        help="model repository for the best trial (default: repository in the study's folder)",
    )
    parser.add_argument(
        "--min-examples", type=int, default=256, metavar="N", help=f"refuse to verify the export with fewer {number}"
    )
    parser.add_argument("--no-export", action="store_true", help="leave the best trial as a checkpoint")
    return parser


def main(argv: list[str]) -> int:
    """Runs or goes on with a search.

    Args:
        argv: Arguments without the program's name.

    Returns:
        The exit code: 0 when all trials are done, 1 on an error, 2 on arguments
        that make no sense, 130 after Ctrl-C.
    """
    quiet_libraries()
    arguments = make_parser().parse_args(argv)
    study_dir: Path = arguments.study_dir or Path("runs") / "tune" / arguments.task.replace(":", ".")
    try:
        from modelyard.training.tune import search

        options = _options(arguments, study_dir)
        result = search(options, _note)
        sys.stdout.write(_summary(options, result))
        if not arguments.no_export:
            sys.stdout.write(
                _export(options, result, arguments.repository or study_dir / "repository", arguments.min_examples)
            )
    except ModelyardError as exc:
        sys.stderr.write(f"modelyard tune: {exc.message}\n")
        return 2 if isinstance(exc, ConfigurationError) else 1
    except KeyboardInterrupt:
        sys.stderr.write(f"modelyard tune: stopped. The same command goes on with the search in {study_dir}.\n")
        return 130
    return 0


def _options(arguments: argparse.Namespace, study_dir: Path) -> TuneOptions:
    from modelyard.training.tasks import find_task
    from modelyard.training.tune import TuneOptions, parse_parameter

    # Before the search: the best is published under this name.
    check_model_name(find_task(arguments.task).name)
    space = [parse_parameter(kind, text) for kind in ("float", "int", "choice") for text in getattr(arguments, kind)]
    return TuneOptions(
        task=arguments.task,
        study_dir=study_dir,
        trials=arguments.trials,
        jobs=arguments.jobs,
        epochs=arguments.epochs,
        metric=arguments.metric,
        direction=arguments.direction,
        pruner=arguments.pruner,
        startup_trials=arguments.startup_trials,
        seed=arguments.seed,
        space=tuple(space),
        assignments=tuple(arguments.set),
    )


def _note(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _summary(options: TuneOptions, result: SearchResult) -> str:
    values = ", ".join(f"{name} {json.dumps(value)}" for name, value in sorted(result.values.items()))
    return (
        f"Best of {result.complete + result.pruned + result.failed} trials ({result.complete} complete, "
        f"{result.pruned} pruned, {result.failed} failed): trial {result.number}, {options.metric} "
        f"{result.value:.4f} with {values}.\n"
        f"Checkpoint: {result.model_dir}\nPlot: {result.plot}\n"
    )


def _export(options: TuneOptions, result: SearchResult, repository: Path, min_examples: int) -> str:
    """Exports the best trial, once."""
    from modelyard.console import ProgressBar
    from modelyard.export import ExportOptions
    from modelyard.training import restore
    from modelyard.training.tune import configure

    task, trainer_options = configure(options, result.values, None)
    model_dir = repository / task.name
    note = options.study_dir / _EXPORTED
    this = {"trial": result.number, "model_dir": str(model_dir)}
    if note.exists():
        before = json.loads(note.read_text("utf-8"))
        if {**before, "version": None} == {**this, "version": None} and Path(before["version"]).is_dir():
            return f"Exported before: {before['version']}\n"
    training = restore(result.model_dir, task)
    training = replace(training, config={**training.config, **result.values, "tune_trial": result.number})
    with ProgressBar() as bar:
        report = training.export(
            model_dir,
            examples=max(_VERIFY, min_examples),
            options=ExportOptions(min_examples=min_examples),
            progress=bar,
        )
    note.write_text(json.dumps({**this, "version": str(report.version.path)}) + "\n", "utf-8")
    return f"Exported: {report.version.path}\n"
