"""``modelyard run``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from modelyard.console import make_command, quiet_libraries, run_command
from modelyard.pipeline._run import RunOptions, RunReport, run_pipeline
from modelyard.training.cli import add_assignments, add_flags

if TYPE_CHECKING:
    from rich.table import Table

_EXAMPLES = """\
examples:
  modelyard run fashion
      Train three epochs, export and verify every format, publish, serve, predict.
  modelyard run fashion --epochs 10 --repository /models
      A longer training; the next free version of /models/fashion.
  modelyard run transfer --set folder=photos --min-examples 100
      A pretrained network on a folder of images, of which there are few.
  MODELYARD_DATA=subset modelyard run fashion --epochs 1
      Everything in under a minute, on the small subset that ships with modelyard.
"""
#: Eight columns of labels; narrower than that they would wrap.
_WIDTH = 118


def make_parser() -> argparse.ArgumentParser:
    """The parser of ``modelyard run``."""
    description = "Train, export, verify, publish, serve and predict with one command."
    parser = make_command("modelyard run", description, _EXAMPLES)
    parser.set_defaults(**vars(RunOptions(task="")))
    parser.add_argument("task", metavar="TASK", help="name of the task, such as fashion, or package.module:Class")
    add_assignments(parser, "value for an argument of the task, such as folder=photos")
    add_flags(
        parser,
        (
            ("--epochs", int, None, "passes over the data (default: %(default)s)"),
            ("--seed", int, None, "seed of the training (default: %(default)s)"),
            ("--repository", Path, "DIR", "model repository to publish to (default: %(default)s)"),
            (
                "--run-dir",
                Path,
                "DIR",
                "folder for checkpoints, logs and images; a run that was stopped goes on (default: demo/run/NAME)",
            ),
            ("--calls", int, None, "timed calls for each format and protocol (default: %(default)s)"),
            ("--measure-seconds", float, "S", "about how long the runtimes are measured (default: %(default)s)"),
            ("--min-examples", int, "N", "refuse to verify with fewer, before the training (default: %(default)s)"),
        ),
    )
    return parser


def main(argv: list[str]) -> int:
    """Runs the pipeline and shows what came of it."""
    quiet_libraries()
    arguments = make_parser().parse_args(argv)
    stopped = "stopped. The same command goes on from the last checkpoint."
    return run_command("run", lambda: _run(arguments), stopped=stopped)


def _run(arguments: argparse.Namespace) -> int:
    started = time.perf_counter()
    report = run_pipeline(RunOptions(**{**vars(arguments), "assignments": tuple(arguments.assignments)}))
    _show(report, time.perf_counter() - started)
    worst = min(row.agreement for row in report.rows)
    if worst < 1:
        sys.stderr.write(f"modelyard run: a served format agrees with the trained model on {worst:.2%} only.\n")
        return 1
    return 0


def _show(report: RunReport, seconds: float) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print(_comparison_table(report))
    console.print(_label_table(report))
    manifest = report.export.manifest
    accuracy = report.training.metrics.get("test_accuracy")
    lines = [
        *([f"Data: {report.training.data}"] if report.training.data else []),
        f"Verified on: {report.export.data}",
        f"Published: {report.export.version.path} (version {manifest.version}, fastest runtime {manifest.runtime})",
        f"Report: {report.export.report_html}",
        f"Picture: {report.picture}",
        f"Serve it: modelyard serve --model_name={manifest.model} "
        f"--model_base_path={report.export.version.path.parent.resolve()} --rest_api_port=8501",
        f"{len(report.training.history)} epochs"
        + ("" if accuracy is None else f", test accuracy {accuracy:.2%}")
        + f"; everything took {seconds:.0f} s",
    ]
    console.print("\n".join(lines), highlight=False, soft_wrap=True)


def _comparison_table(report: RunReport) -> Table:
    from rich.table import Table

    table = Table(title="One call with one image, and agreement with the trained model")
    for name in ("format", "runtime", "protocol"):
        table.add_column(name)
    for name in ("latency p50", "agreement", "max error"):
        table.add_column(name, justify="right")
    for row in report.rows:
        error = report.export.manifest.formats[row.format].verify.max_abs_error
        table.add_row(
            row.format, row.runtime, row.protocol, f"{row.p50_us:,.0f} µs", f"{row.agreement:.2%}", f"{error:.1e}"
        )
    return table


def _label_table(report: RunReport) -> Table:
    from rich.table import Table

    table = Table(
        title=f"{len(report.true_labels)} images: class predicted from the tensor (and from the encoded file, where it "
        "differs)"
    )
    table.add_column("true class")
    for row in report.rows:
        table.add_column(f"{row.format}\n{row.protocol}")
    for index, true in enumerate(report.true_labels):
        cells = []
        for row in report.rows:
            label, encoded = row.labels[index], row.encoded_labels[index]
            text = label if label == encoded else f"{label} (file: {encoded})"
            cells.append(text if label == true else f"[red]{text}[/red]")
        table.add_row(true, *cells)
    return table
