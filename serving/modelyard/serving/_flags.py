"""Command-line flags, spelt as tensorflow_model_server spells them."""

from __future__ import annotations

import argparse
import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from modelyard.errors import ConfigurationError
from modelyard.serving._loader import RUNTIMES, LoadOptions, Runtime
from modelyard.serving._manager import ModelConfig

_DESCRIPTION = """\
Serves models over TensorFlow Serving's gRPC and REST APIs, without TensorFlow.

The base path holds one directory per version, named by an integer; new versions
are picked up while the server runs.
"""
_EXAMPLES = """\
examples:
  modelyard serve --model_name=fashion --model_base_path=/models/fashion --rest_api_port=8501
  curl -d '{"instances": [...]}' http://localhost:8501/v1/models/fashion:predict

A flag may be written --flag=value or --flag value; a boolean one also as --flag alone.
"""


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """What a server is started with.

    Attributes:
        port: gRPC port; 0 for none.
        rest_api_port: REST port; 0 for none.
        models: The models to serve.
        poll_wait_s: Seconds between two looks at the base paths; 0 looks once,
            a negative number never looks.
        load: How versions are loaded.
        workers: Threads that compute predictions.
        tensor_content: gRPC answers carry ``tensor_content``.
        max_body_bytes: Largest REST body.
        max_json_depth: Deepest nesting of a REST body.
        drain_s: Seconds that running requests get when the server stops.
    """

    port: int
    rest_api_port: int
    models: tuple[ModelConfig, ...]
    poll_wait_s: float = 1.0
    load: LoadOptions = LoadOptions()
    workers: int = 2
    tensor_content: bool = False
    max_body_bytes: int = 100 << 20
    max_json_depth: int = 100
    drain_s: float = 10.0


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting, so that one place decides how errors are shown."""

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(message)


def parse_flags(argv: list[str]) -> ServerOptions:
    """Parses the command line.

    Args:
        argv: Arguments without the program's name.

    Raises:
        ConfigurationError: An unknown flag, or a value that makes no sense.
    """
    parser = _parser()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        raise ConfigurationError(_unknown(parser, unknown[0]))
    if args.port == 0 and args.rest_api_port == 0:
        raise ConfigurationError("Both --port and --rest_api_port are 0; expected at least one port to serve on.")
    if not args.model_base_path:
        raise ConfigurationError("--model_base_path is required: the directory that holds the model's versions.")
    base_path = Path(args.model_base_path)
    if not base_path.is_absolute():
        raise ConfigurationError(
            f"--model_base_path={base_path} is relative; expected an absolute path, such as {base_path.resolve()}."
        )
    runtime: Runtime | None = args.runtime
    return ServerOptions(
        port=args.port,
        rest_api_port=args.rest_api_port,
        models=(ModelConfig(name=args.model_name, base_path=base_path),),
        poll_wait_s=args.file_system_poll_wait_seconds,
        load=LoadOptions(
            runtime=runtime,
            threads=args.tensorflow_intra_op_parallelism or 1,
            interpreters=args.num_tflite_pools or _cores(),
            prefer_tflite=args.prefer_tflite_model,
        ),
        workers=args.tensorflow_session_parallelism or _cores(),
        tensor_content=args.enable_serialization_as_tensor_content,
        max_body_bytes=args.rest_api_max_body_bytes,
        max_json_depth=args.rest_api_max_json_depth,
        drain_s=args.drain_seconds,
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="modelyard serve",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    ports = parser.add_argument_group("ports")
    ports.add_argument("--port", type=_port, default=8500, help="gRPC port, 0 for none (default 8500)")
    ports.add_argument("--rest_api_port", type=_port, default=0, help="REST port, 0 for none (default 0)")
    models = parser.add_argument_group("models")
    models.add_argument("--model_name", default="default", help="name of the model in requests (default 'default')")
    models.add_argument("--model_base_path", default="", help="absolute path of the directory with its versions")
    models.add_argument(
        "--file_system_poll_wait_seconds",
        type=float,
        default=1.0,
        help="seconds between two looks for new versions; 0 looks once, <0 never (default 1)",
    )
    runtime = parser.add_argument_group("runtime")
    runtime.add_argument("--runtime", choices=RUNTIMES, help="use this runtime and no other (default: the manifest's)")
    _boolean(runtime, "--prefer_tflite_model", "use model.tflite even where there are other files")
    runtime.add_argument("--num_tflite_pools", type=_count, default=0, help="LiteRT interpreters (default: cores)")
    runtime.add_argument(
        "--tensorflow_session_parallelism", type=_count, default=0, help="threads that predict (default: cores)"
    )
    runtime.add_argument(
        "--tensorflow_intra_op_parallelism", type=_count, default=0, help="threads inside one prediction (default 1)"
    )
    limits = parser.add_argument_group("answers and limits")
    _boolean(limits, "--enable_serialization_as_tensor_content", "gRPC answers carry tensor_content")
    limits.add_argument(
        "--rest_api_max_body_bytes", type=_count, default=100 << 20, help="largest REST body (default 100 MiB)"
    )
    limits.add_argument(
        "--rest_api_max_json_depth", type=_count, default=100, help="deepest nesting of a REST body (default 100)"
    )
    limits.add_argument(
        "--drain_seconds", type=float, default=10.0, help="time that running requests get at SIGTERM (default 10)"
    )
    return parser


def _boolean(group: argparse._ArgumentGroup, flag: str, text: str) -> None:
    group.add_argument(flag, type=_bool, nargs="?", const=True, default=False, metavar="BOOL", help=text)


def _bool(text: str) -> bool:
    values = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"received {text!r}; expected true or false")
    return values[text.lower()]


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a port from 0 to 65535")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a whole number, 0 or more")
    return int(text)


def _unknown(parser: argparse.ArgumentParser, flag: str) -> str:
    name = flag.split("=")[0]
    near = difflib.get_close_matches(name, parser._option_string_actions, n=1)
    hint = f" Did you mean {near[0]}?" if near else " See --help for the flags there are."
    return f"Unknown argument {name}.{hint}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
