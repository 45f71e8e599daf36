"""``modelyard evaluate`` and ``modelyard infer``: a trained run, without training and without a server."""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import DEFAULT_SIGNATURE
from modelyard.console import make_command, quiet_libraries, run_command
from modelyard.errors import ConfigurationError, TrainingError
from modelyard.training.cli._command import Flag, add_assignments, add_flags

_EVALUATE = """\
examples:
  modelyard evaluate runs/photos
      The newest checkpoint on all of the task's data to evaluate on; the numbers are JSON on the standard output.
  modelyard evaluate runs/photos --best test_accuracy --eval-steps 20
      The checkpoint that --keep-best kept, on the first 20 batches.
"""
_INFER = """\
examples:
  modelyard infer runs/photos --data holiday --signature image_bytes --output labels.npz
      Every file in the folder holiday, through the signature that takes encoded images.
  modelyard infer runs/prices --data houses.npz --output prices.npz
      An array for each input, by its name.
  modelyard infer runs/photos --output tests.npz
      The task's own examples.
"""


def evaluate_main(argv: list[str]) -> int:
    """Evaluates a run."""
    parser = _parser("evaluate", "Evaluate a checkpoint of a run, with its task and arguments as they were.", _EVALUATE)
    flags: tuple[Flag, ...] = (
        ("--eval-steps", int, "N", "most batches, always the first ones (default: all)"),
        ("--eval-batch-size", int, None, "examples in each step (default: the run's)"),
    )
    add_flags(parser, flags)
    quiet_libraries()
    arguments = parser.parse_args(argv)
    return run_command("evaluate", lambda: _evaluate(arguments))


def infer_main(argv: list[str]) -> int:
    """Writes the outputs of a run's models for some examples."""
    parser = _parser("infer", "Write what the trained models of a run say of some examples.", _INFER)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="an .npz file with an array for each input, or a folder of image files (default: the task's own examples)",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.npz", help="an array for each output")
    parser.add_argument("--signature", default=DEFAULT_SIGNATURE, help="what to call (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=500, help="examples in each call (default: %(default)s)")
    quiet_libraries()
    arguments = parser.parse_args(argv)
    return run_command("infer", lambda: _infer(arguments))


def _parser(name: str, description: str, examples: str) -> argparse.ArgumentParser:
    parser = make_command(f"modelyard {name}", description, examples)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run, or of one of its checkpoints")
    add_assignments(parser, "another argument of the task")
    parser.add_argument("--best", metavar="[-]METRIC", help="the best checkpoint, not the newest, as with --keep-best")
    return parser


def _restored(arguments: argparse.Namespace) -> Any:
    from modelyard.training.run import goal_of, read_record, restore
    from modelyard.training.tasks import make_task

    if read_record(arguments.run) is None:
        raise ConfigurationError(
            f"{arguments.run} has no run.json; expected the folder of a run, such as runs/fashion, or of a checkpoint."
        )
    task = make_task(str(arguments.run), arguments.assignments)
    return restore(arguments.run, task, goal=None if arguments.best is None else goal_of(arguments.best))


def _evaluate(arguments: argparse.Namespace) -> None:
    from modelyard.training.run import evaluate
    from modelyard.wire import json_text

    result = _restored(arguments)
    size = arguments.eval_batch_size
    size = result.identity["options"]["eval_batch_size"] if size is None else size
    found = evaluate(result.task, batch_size=size, steps=arguments.eval_steps)
    sys.stdout.write(json_text({"step": result.step, **found}, indent=1) + "\n")


def _infer(arguments: argparse.Namespace) -> None:
    from modelyard.training.run import predict, replace_file

    if arguments.output.suffix != ".npz":
        raise ConfigurationError(f"--output is {arguments.output}; expected a file name that ends in .npz.")
    # Before the models are built: a mistake in a path costs nothing.
    try:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigurationError(f"--output is {arguments.output}, whose folder cannot be made: {exc}") from exc
    inputs, files = _read(arguments.data) if arguments.data is not None else (None, ())
    task = _restored(arguments).task
    if files:
        names = {name: each.input for name, each in task.signatures().items() if hasattr(each, "preprocess")}
        if arguments.signature not in names:
            raise ConfigurationError(
                f"--signature is {arguments.signature}, which takes no image files; those that do: "
                f"{', '.join(names) or 'none'}."
            )
        inputs = {names[arguments.signature]: np.array([file.read_bytes() for file in files], dtype=object)}
    found: dict[str, Any] = predict(task, inputs, signature=arguments.signature, batch_size=arguments.batch_size)
    if files:
        found["files"] = np.array([str(file) for file in files])
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **{name: _without_objects(name, values) for name, values in found.items()})
    replace_file(arguments.output, file.getvalue(), error=TrainingError)
    shapes = ", ".join(f"{name} {list(values.shape)}" for name, values in sorted(found.items()))
    sys.stdout.write(f"{arguments.output}: {shapes}\n")


def _read(path: Path) -> tuple[dict[str, Any] | None, tuple[Path, ...]]:
    if path.is_dir():
        # ImageFolder writes the classes into its folder.
        files = tuple(sorted(each for each in path.rglob("*") if each.is_file() and each.name != "vocabulary.txt"))
        if not files:
            raise ConfigurationError(f"--data is {path}, a folder without files; expected images.")
        return None, files
    if path.suffix != ".npz" or not path.is_file():
        raise ConfigurationError(f"--data is {path}; expected an .npz file, or a folder of image files.")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}, ()
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as exc:
        # numpy would advise to unpickle, and takes a single array in a file of that name.
        raise ConfigurationError(
            f"--data is {path}, which cannot be read as arrays of numbers or strings: {type(exc).__name__}. Write it "
            "with np.savez(path, name=array); strings as np.array([...]), without dtype=object."
        ) from exc


def _without_objects(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Strings as bytes of a fixed length: readers would have to unpickle objects."""
    if values.dtype != np.object_:
        return values
    found = values.astype(np.bytes_)
    if found.tolist() != values.tolist():
        raise TrainingError(
            f"The output {name!r} has bytes that end with NUL, which numpy cuts off. Call predict() in Python, which "
            "returns them as they are."
        )
    return found
