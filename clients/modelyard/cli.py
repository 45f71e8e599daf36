"""The ``modelyard`` command: hands its arguments to the room that knows the rest."""

from __future__ import annotations

import difflib
import errno
import importlib
import importlib.metadata
import os
import signal
import sys
from dataclasses import dataclass

from modelyard.console import EXIT_ERROR, EXIT_USAGE, quiet_libraries, run_command, take_verbose
from modelyard.errors import MissingDependencyError


@dataclass(frozen=True, kw_only=True)
class _Command:
    """One subcommand: ``function(argv: list[str]) -> int`` of a module, and the extras that it needs, if any."""

    module: str
    extra: str
    summary: str
    function: str = "main"


_COMMANDS = {
    "run": _Command(
        module="modelyard.pipeline._cli",
        extra="all",
        summary="train, export, verify, publish, serve and predict, in one go",
    ),
    "data": _Command(
        module="modelyard.training.data._cli",
        extra="training",
        summary="convert images to TFRecords; measure what an input function delivers",
    ),
    "train": _Command(module="modelyard.training.cli", extra="training", summary="train a model"),
    "evaluate": _Command(
        module="modelyard.training.cli",
        extra="training",
        summary="evaluate a checkpoint of a training run",
        function="evaluate_main",
    ),
    "infer": _Command(
        module="modelyard.training.cli",
        extra="training",
        summary="write what a training run's models say of some examples, without a server",
        function="infer_main",
    ),
    "tune": _Command(
        module="modelyard.pipeline._tune_cli",
        extra="tune,export",
        summary="search for good hyperparameters and export the best model",
    ),
    "export": _Command(
        module="modelyard.export.cli", extra="training,export", summary="export a trained model, verified"
    ),
    "serve": _Command(
        module="modelyard.serving.runtime", extra="serving", summary="serve a model repository over gRPC and REST"
    ),
    "batch": _Command(
        module="modelyard.batch._cli", extra="serving,beam", summary="answer the rows of files, with Apache Beam"
    ),
    "keys": _Command(
        module="modelyard.serving.access._cli", extra="serving", summary="make keys for callers of a server"
    ),
    "deploy": _Command(
        module="modelyard.deploy._cli", extra="", summary="render what a managed cloud needs to train and to serve"
    ),
    "repo": _Command(
        module="modelyard.artifact._cli", extra="", summary="look into a model repository and keep it in order"
    ),
    "predict": _Command(module="modelyard.clients.cli", extra="", summary="predict from files with a served model"),
    "loadtest": _Command(
        module="modelyard.loadtests.cli", extra="loadtests", summary="load a server, check its answers and its limits"
    ),
}

#: Import names of the packages that come with extras: only their absence means that an extra is missing.
_PACKAGES_OF_EXTRAS = frozenset(
    {
        "PIL", "ai_edge_litert", "apache_beam", "cryptography", "fsspec", "gevent", "google_crc32c", "grpc_health",
        "grpc_reflection", "httptools", "jsonschema", "jwt", "keras", "locust", "matplotlib", "onnx", "onnxruntime",
        "optuna", "rich", "tensorboard", "tensorflow", "tf2onnx", "uvicorn",
        "uvloop",
    }
)  # fmt: skip

#: Commands that take a task of one's own, package.module:Class.
_TAKE_TASKS = frozenset({"data", "evaluate", "export", "infer", "run", "train", "tune"})

_EXAMPLES = """\
examples:
  modelyard run fashion                                      everything, from data to predictions
  modelyard serve --model_name=fashion --model_base_path=/models/fashion --rest_api_port=8501
  modelyard predict fashion shirt.png --server grpc://localhost:8500
  modelyard loadtest --host-grpc localhost:8500 --host-rest http://localhost:8501 -u 4 -t 10s

modelyard COMMAND --help explains a command; COMMAND --verbose also shows what TensorFlow says of itself.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: Arguments without the program's name; None for the process's own.

    Returns:
        The exit code: the command's own, 1 for an error of modelyard, 2 for a wrong usage or a missing extra, 130 after
        Ctrl-C.
    """
    if argv is None and os.getpid() == 1:
        # The kernel keeps a signal from process 1, as of a container, until there is a handler. Commands that end in
        # order set theirs later, after imports that take seconds where processors are few.
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    try:
        code = _main(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output closed it, as head does.
        _write_no_more()
        return EXIT_ERROR
    except OSError as exc:
        if exc.errno != errno.ENOSPC:
            raise
        _write_no_more()
        sys.stderr.write("modelyard: the output cannot be written: No space left on device.\n")
        return EXIT_ERROR
    return code


def _write_no_more() -> None:
    """Keeps the flush at the process's exit from failing again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _main(arguments: list[str]) -> int:
    arguments = take_verbose(arguments)
    quiet_libraries()
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        (sys.stdout if arguments else sys.stderr).write(_help())
        return 0 if arguments else EXIT_USAGE
    name, rest = arguments[0], arguments[1:]
    if name in ("version", "--version"):
        sys.stdout.write(f"modelyard {importlib.metadata.version('modelyard')}\n")
        return 0
    if name not in _COMMANDS:
        sys.stderr.write(f"modelyard: {_unknown(name)}\n")
        return EXIT_USAGE
    return run_command(name, lambda: _run(name, rest))


def _run(name: str, argv: list[str]) -> int:
    command = _COMMANDS[name]
    if name in _TAKE_TASKS:
        # At the end: a file that lies here by chance must not stand in for a package.
        sys.path.append(os.getcwd())
    if name == "serve":
        # Before numpy is imported: it starts a thread for each of the machine's CPUs then, whatever the container may
        # use of them. All spin for 0.1 s and have a stack; nothing that a server does needs them.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        result: int = getattr(importlib.import_module(command.module), command.function)(argv)
        return result
    except ModuleNotFoundError as exc:
        package = (exc.name or "").partition(".")[0]
        if package not in _PACKAGES_OF_EXTRAS or not command.extra:
            raise
        raise MissingDependencyError(package=package, extra=command.extra, purpose=f"modelyard {name}") from exc


def _help() -> str:
    width = max(len(name) for name in _COMMANDS | {"version": None})
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in _COMMANDS.items()]
    lines.append(f"  {'version':<{width}}  print the version")
    commands = "\n".join(lines)
    return (
        "usage: modelyard COMMAND ...\n\n"
        "From a custom training loop to verified predictions, with no TensorFlow in production.\n\n"
        f"commands:\n{commands}\n\n{_EXAMPLES}"
    )


def _unknown(name: str) -> str:
    known = [*_COMMANDS, "version"]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Expected one of {', '.join(known)}."
    return f"unknown command {name!r}. {hint} See modelyard --help."
