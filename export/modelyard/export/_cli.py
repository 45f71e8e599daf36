"""``modelyard export``."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from pathlib import Path

from modelyard.errors import ConfigurationError, ModelyardError
from modelyard.export._options import FORMATS, ExportOptions, ExportReport

_DEFAULTS = ExportOptions()
_EXAMPLES = """\
examples:
  modelyard export fashion --repository models
      Takes the newest checkpoint of runs/fashion to models/fashion/<next version>.
  modelyard export fashion --model-dir runs/quick --repository models --name fashion-quick
      Another run, under another name.
  modelyard export fashion --repository models --optional tflite
      Publishes without TFLite if that format fails; report.html then says why.
"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of ``modelyard export``."""
    parser = argparse.ArgumentParser(
        prog="modelyard export",
        description="Convert a trained task to SavedModel, ONNX and TFLite, verify each against the trained model, "
        "and publish them as the next version. Nothing is published that was not verified.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", metavar="TASK", help="name of the task, such as fashion")
    parser.add_argument("--model-dir", type=Path, metavar="RUN", help="folder of the training run (default: runs/TASK)")
    parser.add_argument(
        "--repository", type=Path, metavar="REPO", required=True, help="folder of the model repository; made if absent"
    )
    parser.add_argument("--name", help="name of the model in the repository (default: TASK)")
    parser.add_argument(
        "--examples", type=int, default=512, metavar="N", help="real examples to verify with (default: %(default)s)"
    )
    parser.add_argument(
        "--optional",
        action="append",
        default=[],
        choices=FORMATS,
        help="publish without this format if it fails; may be given more than once",
    )
    parser.add_argument("--opset", type=int, default=_DEFAULTS.opset, help="ONNX operator set (default: %(default)s)")
    return parser


def main(argv: list[str]) -> int:
    """Exports the newest checkpoint of a training run.

    Args:
        argv: Arguments without the program's name.

    Returns:
        The process's exit code: 0 when a version was published, 1 on an error,
        2 on arguments that make no sense, 130 after Ctrl-C.
    """
    # Only a process of ours sets this, never an import.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    arguments = make_parser().parse_args(argv)
    try:
        report = _export(arguments)
    except ModelyardError as exc:
        sys.stderr.write(f"modelyard export: {exc.message}\n")
        return 2 if isinstance(exc, ConfigurationError) else 1
    except KeyboardInterrupt:
        sys.stderr.write("modelyard export: stopped. Nothing was published.\n")
        return 130
    sys.stdout.write(_summary(report))
    return 0


def _export(arguments: argparse.Namespace) -> ExportReport:
    from modelyard.artifact import Source
    from modelyard.export._git import git_commit
    from modelyard.export._model import export_model
    from modelyard.export._progress import ProgressBar
    from modelyard.training import restore
    from modelyard.training.tasks import find_task

    options = ExportOptions(optional=tuple(dict.fromkeys(arguments.optional)), opset=arguments.opset)
    if arguments.examples < options.min_examples:
        raise ConfigurationError(f"--examples is {arguments.examples}; expected at least {options.min_examples}.")
    name = arguments.name or arguments.task
    if Path(name).name != name or name.startswith("."):
        raise ConfigurationError(f"--name is {name!r}; expected a plain folder name, not a path.")
    model_dir = arguments.model_dir or Path("runs") / arguments.task
    kind = find_task(arguments.task)
    task = kind()
    result = restore(task, model_dir)
    with ProgressBar() as bar:
        return export_model(
            task.root,
            task.signatures(),
            task.verification_data(arguments.examples),
            model_dir=arguments.repository / name,
            source=Source(
                task=result.task,
                git_commit=git_commit(Path(inspect.getfile(kind))),
                data=result.data,
                config=result.config,
                metrics=result.metrics,
            ),
            options=options,
            progress=bar,
        )


def _summary(report: ExportReport) -> str:
    manifest = report.manifest
    lines = [f"{manifest.model} version {manifest.version}: {report.version.path}"]
    for name, check in report.checks.items():
        verified = check.report
        agreement = "" if verified.top1_agreement is None else f", top-1 agreement {verified.top1_agreement:.2%}"
        lines.append(
            f"  {name}: verified on {verified.examples:,} examples, max. error {verified.max_abs_error:.2g}{agreement}"
        )
    lines += [f"  {name}: left out. {reason}" for name, reason in report.skipped.items()]
    lines += [f"Fastest runtime here: {manifest.runtime}", f"Report: {report.report_html}"]
    return "\n".join(lines) + "\n"
