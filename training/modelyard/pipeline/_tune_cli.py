"""``modelyard tune``: a search, and the export of its best trial."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelyard.artifact import check_model_name
from modelyard.console import make_command, quiet_libraries, run_command
from modelyard.pipeline._again import naming_the_command
from modelyard.training.cli import add_assignments, add_flags, note

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
    description = (
        "Search for good hyperparameters with Optuna: parallel trials, bad ones ended early, the best exported. "
        "A search that was killed goes on."
    )
    parser = make_command("modelyard tune", description, _EXAMPLES)
    parser.add_argument("task", metavar="TASK", help="name of the task, such as fashion, or package.module:Class")
    number = "(default: %(default)s)"
    for kind, form, what in (
        ("float", "NAME=LOW:HIGH[:log]", "a number to search"),
        ("int", "NAME=LOW:HIGH[:log]", "a whole number to search"),
        ("choice", "NAME=A,B,...", "a choice to search"),
    ):
        parser.add_argument(
            f"--{kind}", action="append", default=[], metavar=form, help=f"{what}; may be given more than once"
        )
    add_assignments(parser, "value for an argument of the task that stays the same")
    add_flags(
        parser,
        (
            ("--trials", int, "N", f"trials in all {number}"),
            ("--jobs", int, "N", f"processes, one trial at a time each {number}"),
            ("--epochs", int, "N", f"epochs of a whole trial {number}"),
            ("--metric", str, None, f"what to optimize {number}"),
            ("--startup-trials", int, "N", f"trials at random, none of them pruned {number}"),
            ("--seed", int, None, f"of the search and of every training {number}"),
            ("--study-dir", Path, "DIR", "folder of the search (default: runs/tune/TASK)"),
            (
                "--repository",
                Path,
                "DIR",
                "model repository for the best trial (default: repository in the study's folder)",
            ),
            ("--min-examples", int, "N", f"refuse to verify the export with fewer {number}"),
            ("--no-export", None, None, "leave the best trial as a checkpoint"),
        ),
    )
    parser.add_argument("--direction", choices=("maximize", "minimize"), default="maximize", help=number)
    parser.add_argument(
        "--pruner", choices=("median", "hyperband", "none"), default="median", help=f"which trials end early {number}"
    )
    parser.set_defaults(trials=20, jobs=1, epochs=5, metric="test_accuracy", startup_trials=4, seed=0, min_examples=256)
    return parser


def main(argv: list[str]) -> int:
    """Runs or goes on with a search."""
    quiet_libraries()
    arguments = make_parser().parse_args(argv)
    arguments.study_dir = arguments.study_dir or Path("runs") / "tune" / arguments.task.replace(":", ".")
    stopped = f"stopped. The same command goes on with the search in {arguments.study_dir}."
    return run_command("tune", lambda: _search(arguments), stopped=stopped)


def _search(arguments: argparse.Namespace) -> None:
    from modelyard.training.tune import search

    options = _options(arguments)
    result = search(options, note)
    sys.stdout.write(_summary(options, result))
    if not arguments.no_export:
        repository = arguments.repository or options.study_dir / "repository"
        sys.stdout.write(_export(options, result, repository, arguments.min_examples))


def _options(arguments: argparse.Namespace) -> TuneOptions:
    from modelyard.training.tasks import find_task
    from modelyard.training.tune import TuneOptions, parse_parameter

    # Before the search: the best is published under this name.
    check_model_name(find_task(arguments.task).name)
    space = [parse_parameter(kind, text) for kind in ("float", "int", "choice") for text in getattr(arguments, kind)]
    given: dict[str, Any] = {field.name: getattr(arguments, field.name, None) for field in fields(TuneOptions)}
    return TuneOptions(**{**given, "space": tuple(space), "assignments": tuple(arguments.assignments)})


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
    with ProgressBar() as bar, naming_the_command(result.model_dir, repository):
        options_of_export = ExportOptions(min_examples=min_examples)
        count = max(_VERIFY, min_examples)
        report = training.export(model_dir, examples=count, options=options_of_export, progress=bar)
    note.write_text(json.dumps({**this, "version": str(report.version.path)}) + "\n", "utf-8")
    return f"Exported: {report.version.path}\n"
