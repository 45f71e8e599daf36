"""The command line of ``modelyard serve``, made of the table of flags."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from modelyard.errors import ConfigurationError
from modelyard.serving.config import _sagemaker
from modelyard.serving.config._flag import Flag
from modelyard.serving.config._options import FLAGS

_DESCRIPTION = """\
Serves models over TensorFlow Serving's gRPC and REST APIs, without TensorFlow.

A model is a directory with one directory per version, named by an integer; a
repository is a directory of models. New versions and models are picked up while
the server runs.

  repository/fashion/1/   saved_model.pb, model.onnx, model.tflite or what modelyard export
                          writes; Triton's model.savedmodel/, too
"""
_EXAMPLES = """\
examples:
  modelyard serve --model_name=fashion --model_base_path=/models/fashion --rest_api_port=8501
  modelyard serve --model_repository=/models --rest_api_port=8501
  modelyard serve --model_config_file=/models/models.config --rest_api_port=8501
  curl -d '{"instances": [...]}' http://localhost:8501/v1/models/fashion:predict

A flag may be written --flag=value or --flag value; a boolean one also as --flag alone.

environment:
  MODEL_NAME, MODEL_BASE_PATH   as in TensorFlow Serving's image: where one of them is set, and no flag
      says which models there are, the model $MODEL_NAME (default model) is served from
      $MODEL_BASE_PATH/$MODEL_NAME (default /models/model); --model_name and --model_base_path each
      go before their part of that. With neither flag nor name, and with no folder model in
      $MODEL_BASE_PATH, that is a --model_repository
  MODELYARD_DEVICE              what --device is where it is not given, as in the image serving-gpu
  SAGEMAKER_BIND_TO_PORT        with --sagemaker: the REST port (default 8080); the model is then looked
      for in /opt/ml/model, unless MODEL_BASE_PATH names another folder
"""
_TITLES = {
    "same": "TensorFlow Serving's flags",
    "better": "TensorFlow Serving's flags, with a difference",
    "ours": "modelyard's own flags",
    "ignored": "TensorFlow Serving's flags that have no effect here",
}

#: Flags of Triton by what is called otherwise here: of the names here, another would be the nearest.
_TRITON = {
    "--exit-timeout-secs": "--drain_seconds",
    "--grpc-port": "--port",
    "--grpc-restricted-protocol": "--access_file",
    "--grpc-root-cert": "--ssl_config_file",
    "--grpc-server-cert": "--ssl_config_file",
    "--grpc-server-key": "--ssl_config_file",
    "--grpc-use-ssl": "--ssl_config_file",
    "--grpc-use-ssl-mutual": "--ssl_config_file",
    "--http-max-input-size": "--rest_api_max_body_bytes",
    "--http-port": "--rest_api_port",
    "--http-restricted-api": "--access_file",
    "--load-model": "--model_config_file",
    "--log-error": "--log_level",
    "--log-info": "--log_level",
    "--log-verbose": "--log_level",
    "--log-warning": "--log_level",
    "--metrics-port": "--rest_api_port",
    "--repository-poll-secs": "--file_system_poll_wait_seconds",
}
#: What many name again behind the entry point of TensorFlow Serving's image, which goes on without it; Triton's image
#: takes its program's name there, and its flags are answered each for itself.
_PROGRAMS = ("tensorflow_model_server", "tf_serving_entrypoint.sh", "tritonserver")
#: Files that name files.
_MAX_FILES = 8


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting, so that one place decides how errors are shown."""

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(message)


def parse_arguments(argv: Sequence[str], environment: Mapping[str, str]) -> argparse.Namespace:
    """The values of all flags, by name; those of ``--flagfile`` in its place. A ``model_name`` not given is None."""
    parser = _Parser(
        prog="modelyard serve",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for effect, title in _TITLES.items():
        group = parser.add_argument_group(title)
        for flag in FLAGS:
            if flag.effect == effect:
                _add(group, flag)
    # Another default stands for it in an image, and in SageMaker's container: what is given goes before both.
    parser.set_defaults(model_name=None)
    if device := environment.get("MODELYARD_DEVICE"):
        parser.set_defaults(device=device)
    args, unknown = parser.parse_known_args(_with_files(argv))
    unknown = [each for each in unknown if each.startswith("-") or Path(each).name not in _PROGRAMS]
    if unknown == [_sagemaker.ARGUMENT]:
        args.sagemaker, unknown = True, []
    if unknown:
        # What stands between flags may be their values.
        flags = [each for each in unknown if each.startswith("-")]
        raise ConfigurationError(" ".join(dict.fromkeys(map(_unknown, flags or unknown[:1]))))
    for flag in FLAGS:
        if flag.kind in ("int", "float"):
            _check_bounds(flag, getattr(args, flag.name))
    return args


def _check_bounds(flag: Flag, value: float) -> None:
    if value < flag.least or (flag.positive and value <= 0):
        wanted = "more than 0" if flag.positive else f"{flag.least} or more"
        raise ConfigurationError(f"--{flag.name}={value:g}; expected {wanted}.")
    if value > flag.largest:
        raise ConfigurationError(f"--{flag.name}={value}; expected {flag.largest} or less.")


def _add(group: argparse._ArgumentGroup, flag: Flag) -> None:
    name = f"--{flag.name}"
    default = "" if flag.default == "" else f" (default {flag.default!r})"
    text = f"{flag.help}{default}" + (f"; {flag.note}" if flag.note else "")
    text = text.replace("%", "%%")
    if flag.name == "version":
        group.add_argument(name, action="version", version=f"modelyard {version('modelyard')}", help=text)
    elif flag.kind == "bool":
        group.add_argument(name, type=_bool, nargs="?", const=True, default=flag.default, metavar="BOOL", help=text)
    elif flag.kind == "int":
        kind = _port if flag.name.endswith("port") else _count if flag.least >= 0 else _signed
        group.add_argument(name, type=kind, default=flag.default, metavar="N", help=text)
    elif flag.kind == "texts":
        group.add_argument(name, action="append", default=[], metavar="TEXT", help=text)
    elif flag.kind == "float":
        group.add_argument(name, type=_finite, default=flag.default, metavar="X", help=text)
    else:
        group.add_argument(name, default=flag.default, metavar="TEXT", help=text, choices=flag.choices or None)


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


def _signed(text: str) -> int:
    return _count(text.removeprefix("-")) * (-1 if text.startswith("-") else 1)


def _finite(text: str) -> float:
    with contextlib.suppress(ValueError):
        if math.isfinite(value := float(text)):
            return value
    raise argparse.ArgumentTypeError(f"received {text!r}; expected a number")


def _unknown(argument: str) -> str:
    if not argument.startswith("-"):
        return f"Unknown argument {argument}. A model's path is --model_base_path={argument}, beside --model_name."
    name = argument.split("=")[0]
    near = difflib.get_close_matches(name, [f"--{flag.name}" for flag in FLAGS], n=1)
    meant = _TRITON.get(name) or "".join(near)
    hint = f" Did you mean {meant}?" if meant else " See --help for the flags there are."
    return f"Unknown argument {name}.{hint}"


def _with_files(argv: Sequence[str], depth: int = 0) -> list[str]:
    """The arguments with the lines of each ``--flagfile`` in its place, so that later ones win."""
    found: list[str] = []
    rest = iter(argv)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name != "--flagfile":
            found.append(argument)
            continue
        path = Path(value if equals else next(rest, ""))
        if depth >= _MAX_FILES:
            raise ConfigurationError(f"--flagfile={path}: files of flags name each other more than {depth} deep.")
        try:
            lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigurationError(f"--flagfile={path} cannot be read: {exc}.") from exc
        flags = []
        for number, line in enumerate(lines, 1):
            if not line or line.startswith("#"):
                continue
            if not line.startswith("--") or "=" not in line:
                raise ConfigurationError(
                    f"--flagfile={path}, line {number} is {line!r}; expected --flag=value, or a comment."
                )
            if line[2:].partition("=")[0] not in {flag.name for flag in FLAGS}:
                raise ConfigurationError(f"--flagfile={path}, line {number}: {_unknown(line)}")
            flags.append(line)
        found += _with_files(flags, depth + 1)
    return found
