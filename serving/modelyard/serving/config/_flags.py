"""Command-line flags, spelt as tensorflow_model_server spells them."""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import logging
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from modelyard.artifact import Location, load_trusted_keys, locate
from modelyard.errors import ConfigurationError
from modelyard.serving.config import _sagemaker
from modelyard.serving.config._access import AccessOptions, access_options
from modelyard.serving.config._batching import BatchParameters, read_batch_parameters
from modelyard.serving.config._cpus import available_cpus
from modelyard.serving.config._flag_files import with_files
from modelyard.serving.config._flag_table import FLAGS, Flag
from modelyard.serving.config._lifecycle import LifecycleOptions, lifecycle_options
from modelyard.serving.config._limits import TransportLimits, transport_limits
from modelyard.serving.config._load import LoadOptions
from modelyard.serving.config._models import (
    ModelConfig,
    base_location,
    check_name,
    models_from_message,
    models_of_repository,
    not_models,
)
from modelyard.serving.config._prediction_log import PredictionLogLimits, prediction_log_limits
from modelyard.serving.config._telemetry import TelemetryOptions, telemetry_options
from modelyard.serving.config._text_proto import read_text_proto
from modelyard.serving.config._tls import TlsConfig, read_tls_config
from modelyard.serving.config._traffic import TrafficOptions, traffic_options
from modelyard.serving.config._watch import WatchOptions
from modelyard.wire import config_pb2, serving_pb2

_LOG = logging.getLogger("modelyard.serving")

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
      says where models are, the model $MODEL_NAME (default model) is served from
      $MODEL_BASE_PATH/$MODEL_NAME (default /models/model); --model_name goes before MODEL_NAME.
      Without a name, and with no folder model in $MODEL_BASE_PATH, that is a --model_repository
  SAGEMAKER_BIND_TO_PORT        with --sagemaker: the REST port (default 8080); the model is then looked
      for in /opt/ml/model, unless MODEL_BASE_PATH names another folder
"""
#: With batching, calls of Classify and Regress each hold a thread while they wait for their batch.
_WAITING_THREADS = 64
#: Where scrapers look by themselves, and where upstream has the page once a file asks for it.
_METRICS_PATH = "/metrics"
_UPSTREAM_METRICS_PATH = "/monitoring/prometheus/metrics"
_IMAGE_MODEL_NAME = "model"
_IMAGE_BASE_PATH = "/models"
#: gRPC takes arguments as 32-bit numbers or as text.
_INT32 = range(-(1 << 31), 1 << 31)
#: Upstream's 0 for no time-out, as a number that timers can hold.
_FOREVER_S = 1e9
#: What earlier releases had, and what to do instead.
_REMOVED = {
    "--allow_remote_admin": "administrators show credentials (--access_file); or use --insecure_admin=anywhere.",
    "--workers": "one process computes on all cores, and holds the weights once. Leave it out; to use fewer cores, set "
    "--tensorflow_session_parallelism, or limit the process (taskset, a container's CPU limit).",
}
_TITLES = {
    "same": "TensorFlow Serving's flags",
    "better": "TensorFlow Serving's flags, with a difference",
    "ours": "modelyard's own flags",
    "ignored": "TensorFlow Serving's flags that have no effect here",
}


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """What a server is started with.

    Attributes:
        port: gRPC port; 0 for none.
        grpc_socket_path: UNIX socket for gRPC; empty for none.
        grpc_channel_arguments: More gRPC channel arguments.
        transport: What serves both ports: ``native`` or ``python``.
        limits: What clients may have it hold.
        prediction_log: Limits of the log of predictions.
        rest_api_port: REST port; 0 for none.
        models: The models to serve.
        model_config_file: The file that ``models`` came from, to look at again; None for none.
        model_config_poll_s: Seconds between two looks at it; 0 for never.
        model_repository: The folder that ``models`` were found in, to look at as base paths are; None for none.
        watch: How base paths are watched.
        load: How versions are loaded.
        allow_new_labels: New version labels may point to versions not loaded.
        threads: Threads of each model that compute predictions, and that decode requests.
        tensor_content: gRPC answers carry ``tensor_content``.
        cors: REST answers carry CORS headers.
        sagemaker: REST answers SageMaker's URLs too.
        console: REST serves pages for people at /console.
        rest_timeout_s: Time that a REST request may take.
        strict_json: REST answers never hold NaN or infinities.
        rest_extensions: REST accepts and writes more than upstream's.
        check_methods: Calls by another method than the signature's are refused.
        max_body_bytes: Largest REST body.
        max_json_depth: Deepest nesting of a REST body.
        access: Who may do what, and where keys and certificates are.
        health: grpc.health.v1 is served.
        reflection: grpc.reflection is served.
        tls: Key and certificate; None for plain text.
        rest_tls: REST is served with TLS too.
        metrics_paths: Where the Prometheus page is.
        batching: How requests are batched; None for not at all.
        per_model_batching: Versions say themselves how; those that do not are not batched.
        greedy_batching: Requests that arrive together are computed together, where their rows do not depend on each
            other.
        max_batch_rows: Rows that are computed together at most.
        max_queued_requests: Requests of one model that may wait; 0 for any number.
        max_queue_delay_s: Seconds that a request may have to wait; 0 for any time.
        warmup_iterations: How often warm-up records are replayed; 0 for never.
        traffic: Which versions answer requests that name none; None for the newest.
        lifecycle: How it begins, ends, and lives with models that do not behave.
        autotune_file: Measure and write this file instead of serving; empty to serve.
        autotune_latency_s: Longest time of a request, in seconds, for that.
        telemetry: What is logged.
    """

    port: int
    rest_api_port: int
    models: tuple[ModelConfig, ...]
    grpc_socket_path: str = ""
    grpc_channel_arguments: tuple[tuple[str, int | str], ...] = ()
    transport: str = field(default_factory=lambda: transport_of(""))
    limits: TransportLimits = TransportLimits()
    prediction_log: PredictionLogLimits = PredictionLogLimits()
    model_config_file: Path | None = None
    model_config_poll_s: float = 0.0
    model_repository: Location | None = None
    watch: WatchOptions = field(default_factory=WatchOptions)
    load: LoadOptions = LoadOptions()
    allow_new_labels: bool = False
    threads: int = 2
    tensor_content: bool = False
    cors: bool = False
    sagemaker: bool = False
    console: bool = False
    rest_timeout_s: float = 30.0
    strict_json: bool = False
    rest_extensions: bool = False
    check_methods: bool = False
    max_body_bytes: int = 100 << 20
    max_json_depth: int = 100
    access: AccessOptions = AccessOptions()
    health: bool = True
    reflection: bool = True
    tls: TlsConfig | None = None
    rest_tls: bool = True
    metrics_paths: tuple[str, ...] = (_METRICS_PATH,)
    batching: BatchParameters | None = None
    per_model_batching: bool = False
    greedy_batching: bool = True
    max_batch_rows: int = 64
    max_queued_requests: int = 0
    max_queue_delay_s: float = 0.0
    warmup_iterations: int = 1
    traffic: TrafficOptions | None = None
    lifecycle: LifecycleOptions = LifecycleOptions()
    autotune_file: str = ""
    autotune_latency_s: float = 0.05
    telemetry: TelemetryOptions = TelemetryOptions()


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting, so that one place decides how errors are shown."""

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(message)


def parse_flags(argv: list[str], environment: Mapping[str, str] | None = None) -> ServerOptions:
    """Parses the command line.

    Flags of tensorflow_model_server that have no effect here are accepted, with
    one line in the log that says what to use instead.

    Args:
        argv: Arguments without the program's name.
        environment: Where ``MODEL_NAME`` and ``MODEL_BASE_PATH`` are looked up,
            which TensorFlow Serving's image reads; None for nowhere.

    Raises:
        ConfigurationError: An unknown flag, a value that makes no sense, or a
            configuration file that cannot be used.
    """
    parser = _parser()
    args, unknown = parser.parse_known_args(with_files(argv))
    if unknown == [_sagemaker.ARGUMENT]:
        args.sagemaker, unknown = True, []
    if unknown:
        raise ConfigurationError(_unknown(unknown[0]))
    for flag in FLAGS:
        if flag.effect == "ignored" and getattr(args, flag.name) != flag.default:
            _LOG.warning("--%s has no effect: %s", flag.name, flag.note)
    if args.sagemaker:
        _sagemaker.apply_sagemaker(
            args,
            environment or {},
            default_name=str(_default("model_name")),
            image_base_path=_IMAGE_BASE_PATH,
        )
    if args.port == 0 and args.rest_api_port == 0 and not args.grpc_socket_path:
        raise ConfigurationError("Both --port and --rest_api_port are 0; expected at least one port to serve on.")
    if args.console and args.rest_api_port == 0:
        raise ConfigurationError(
            "--console is served on the REST port, and there is none; set --rest_api_port=8501, too."
        )
    _check_parallelism(args)
    cpus = available_cpus()
    transport = transport_of(args.transport)
    limits = transport_limits(args, transport)
    access = access_options(args)
    batching = _batching(args, cpus)
    config_file = Path(args.model_config_file) if args.model_config_file else None
    repository = _repository(args, environment or {})
    if repository is not None:
        models = models_of_repository(repository)
        for sentence in not_models(repository, models):
            _LOG.warning("%s", sentence)
    else:
        models = _single_model(args, environment or {}) if config_file is None else read_model_config(config_file)
    if args.sagemaker and not models:
        raise ConfigurationError(f"--sagemaker answers for a model, and {repository or config_file} has none.")
    if args.sagemaker and repository is not None and len(models) > 1:
        raise ConfigurationError(
            f"--sagemaker answers for one model, and --model_repository={repository} has {len(models)}: "
            f"{', '.join(model.name for model in models)}. Use --model_base_path={repository}/NAME --model_name=NAME "
            "for one of them."
        )
    return ServerOptions(
        port=args.port,
        grpc_socket_path=args.grpc_socket_path,
        grpc_channel_arguments=_channel_arguments(args.grpc_channel_arguments),
        transport=transport,
        limits=limits,
        prediction_log=prediction_log_limits(args),
        rest_api_port=args.rest_api_port,
        models=models,
        model_config_file=config_file,
        model_config_poll_s=args.model_config_file_poll_wait_seconds,
        model_repository=repository,
        watch=WatchOptions(
            poll_wait_s=0.0 if args.model_control_mode == "none" else args.file_system_poll_wait_seconds,
            explicit=args.model_control_mode == "explicit",
            resource_preserving=args.resource_preserving,
            max_load_retries=args.max_num_load_retries,
            retry_interval_s=args.load_retry_interval_micros / 1e6,
            load_slots=threading.Semaphore(args.num_load_threads or 1),
            cache_dir=Path(args.remote_cache_dir) if args.remote_cache_dir else None,
        ),
        load=LoadOptions(
            runtime=args.runtime or None,
            precision=args.precision or None,
            threads=args.tensorflow_intra_op_parallelism or None,
            cpus=cpus,
            interpreters=args.num_tflite_pools or cpus,
            prefer_tflite=args.prefer_tflite_model,
            tags=tuple(args.saved_model_tags.split(",")),
            trusted_keys=load_trusted_keys([Path(path) for path in args.trusted_key]),
        ),
        allow_new_labels=args.allow_version_labels_for_unavailable_models,
        threads=args.tensorflow_session_parallelism or (_WAITING_THREADS if batching else cpus),
        tensor_content=args.enable_serialization_as_tensor_content,
        cors=args.rest_api_enable_cors_support,
        sagemaker=args.sagemaker,
        console=args.console,
        rest_timeout_s=args.rest_api_timeout_in_ms / 1e3 or _FOREVER_S,
        strict_json=args.rest_api_strict_json,
        rest_extensions=args.rest_api_extensions,
        check_methods=args.enable_signature_method_name_check,
        max_body_bytes=limits.largest(args.rest_api_max_body_bytes),
        max_json_depth=args.rest_api_max_json_depth,
        access=access,
        health=args.enable_grpc_healthcheck_service,
        reflection=args.enable_grpc_reflection,
        tls=read_tls_config(access.ssl_config_file, access.ssl_client_ca_file) if access.ssl_config_file else None,
        rest_tls=args.rest_api_ssl,
        metrics_paths=_metrics_paths(args.monitoring_config_file),
        batching=batching,
        per_model_batching=args.enable_per_model_batching_parameters,
        greedy_batching=args.greedy_batching,
        max_batch_rows=args.max_batch_rows or 1,
        max_queued_requests=args.max_queued_requests,
        max_queue_delay_s=args.max_queue_delay_ms / 1e3,
        warmup_iterations=max(1, args.num_request_iterations_for_warmup) if args.enable_model_warmup else 0,
        traffic=traffic_options(args),
        lifecycle=lifecycle_options(args),
        autotune_file=args.autotune,
        autotune_latency_s=args.autotune_latency_ms / 1e3,
        telemetry=telemetry_options(args),
    )


def read_model_config(path: Path) -> tuple[ModelConfig, ...]:
    """Reads a model config file.

    Args:
        path: A ``ModelServerConfig`` in protobuf text format.

    Raises:
        ConfigurationError: The file cannot be read, or its models make no sense.
    """
    config = read_text_proto(path, serving_pb2.ModelServerConfig(), flag="--model_config_file")
    return models_from_message(config)


def transport_of(asked: str) -> str:
    """What serves both ports.

    Args:
        asked: ``--transport``; empty for the native core, or what there is where that is not installed.

    Returns:
        ``native`` or ``python``.

    Raises:
        ConfigurationError: The native core is asked for and not installed.
    """
    if asked == "python" or importlib.util.find_spec("modelyard_core") is not None:
        return asked or "native"
    if asked:
        raise ConfigurationError(
            "--transport=native needs modelyard_core, which is not installed: build it with make install, which needs "
            "Rust, or use --transport=python."
        )
    _LOG.warning("modelyard_core is not installed: uvicorn and grpc.aio serve (--transport=python), which is slower")
    return "python"


def _repository(args: argparse.Namespace, environment: Mapping[str, str]) -> Location | None:
    others = {name: getattr(args, name) for name in ("model_name", "model_base_path", "model_config_file")}
    given = {name: value for name, value in others.items() if value != _default(name)}
    if not args.model_repository:
        folder = environment.get("MODEL_BASE_PATH")
        if given or not folder or environment.get("MODEL_NAME"):
            return None
        # Upstream's image knows no repository: there, this is a folder that holds the model called model.
        path = Path(folder)
        return path if path.is_dir() and not (path / _IMAGE_MODEL_NAME).is_dir() else None
    for name, value in given.items():
        way = f" For one of them: --model_base_path={args.model_repository}/NAME." if name == "model_name" else ""
        raise ConfigurationError(
            f"--model_repository={args.model_repository} and --{name}={value} are both set; expected one of them: a "
            f"repository's models are all served, by the names of their folders.{way}"
        )
    location = locate(args.model_repository)
    return location.absolute() if isinstance(location, Path) else location


def _single_model(args: argparse.Namespace, environment: Mapping[str, str]) -> tuple[ModelConfig, ...]:
    name, base_path = args.model_name, args.model_base_path
    if not base_path and (environment.get("MODEL_NAME") or environment.get("MODEL_BASE_PATH")):
        # What the entry point of TensorFlow Serving's image makes of them; flags that follow it win there too.
        folder = environment.get("MODEL_NAME") or _IMAGE_MODEL_NAME
        base_path = f"{environment.get('MODEL_BASE_PATH') or _IMAGE_BASE_PATH}/{folder}"
        name = name if name != _default("model_name") else folder
    if not base_path:
        raise ConfigurationError(
            "--model_base_path is required: the directory that holds the model's versions. For several models, "
            "--model_repository is the directory that holds theirs, or --model_config_file a file that lists them."
        )
    if not name:
        raise ConfigurationError("--model_name is empty; expected the model's name in requests.")
    check_name(name, "--model_name")
    return (ModelConfig(name=name, base_path=base_location(base_path, what=f"model {name} (--model_base_path)")),)


def _default(name: str) -> bool | int | float | str:
    return next(flag.default for flag in FLAGS if flag.name == name)


def _check_parallelism(args: argparse.Namespace) -> None:
    parts = (args.tensorflow_intra_op_parallelism, args.tensorflow_inter_op_parallelism)
    if args.tensorflow_session_parallelism and all(parts):
        raise ConfigurationError(
            "--tensorflow_session_parallelism, --tensorflow_intra_op_parallelism and --tensorflow_inter_op_parallelism "
            "are all set; expected the first alone, or the other two."
        )


def _batching(args: argparse.Namespace, cpus: int) -> BatchParameters | None:
    if not args.enable_batching:
        if args.batching_parameters_file:
            raise ConfigurationError("--batching_parameters_file was set without setting --enable_batching to true.")
        return None
    if not args.batching_parameters_file:
        return BatchParameters(threads=cpus, pad_with_zeros=args.batching_zero_padding)
    parameters = read_batch_parameters(Path(args.batching_parameters_file), pad_with_zeros=args.batching_zero_padding)
    return parameters if parameters.threads else replace(parameters, threads=cpus)


def _metrics_paths(path: str) -> tuple[str, ...]:
    if not path:
        return (_METRICS_PATH,)
    config = read_text_proto(Path(path), config_pb2.MonitoringConfig(), flag="--monitoring_config_file")
    if not config.prometheus_config.enable:
        return ()
    return (config.prometheus_config.path or _UPSTREAM_METRICS_PATH, _METRICS_PATH)


def _channel_arguments(text: str) -> tuple[tuple[str, int | str], ...]:
    arguments: list[tuple[str, int | str]] = []
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigurationError(f"--grpc_channel_arguments has {item!r}; expected name=value.")
        number = int(value) if value.removeprefix("-").isdecimal() else None
        arguments.append((name, value if number is None or number not in _INT32 else number))
    return tuple(arguments)


def _parser() -> argparse.ArgumentParser:
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
    return parser


def _add(group: argparse._ArgumentGroup, flag: Flag) -> None:
    text = f"{flag.help} (default {flag.default!r})" + (f"; {flag.note}" if flag.note else "")
    name = f"--{flag.name}"
    help_text = text.replace("%", "%%")
    if flag.name == "version":
        group.add_argument(name, action="version", version=f"modelyard {_version()}", help=help_text)
    elif flag.kind == "bool":
        group.add_argument(
            name, type=_bool, nargs="?", const=True, default=flag.default, metavar="BOOL", help=help_text
        )
    elif flag.kind == "int":
        kind = _port if flag.name.endswith("port") else _count
        if flag.name.endswith("poll_wait_seconds"):
            # Upstream reads a negative one as never, as it does 0.
            kind = _seconds
        group.add_argument(name, type=kind, default=flag.default, metavar="N", help=help_text)
    elif flag.kind == "texts":
        group.add_argument(name, action="append", default=[], metavar="TEXT", help=help_text)
    elif flag.kind == "float":
        group.add_argument(name, type=_finite, default=flag.default, metavar="X", help=help_text)
    else:
        group.add_argument(name, default=flag.default, metavar="TEXT", help=help_text, choices=flag.choices or None)


def _version() -> str:
    from importlib.metadata import version

    return version("modelyard")


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


def _seconds(text: str) -> int:
    return _count(text.removeprefix("-")) * (-1 if text.startswith("-") else 1)


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a number")
    return value


def _unknown(argument: str) -> str:
    name = argument.split("=")[0]
    if name in _REMOVED:
        return f"{name} is no longer a flag: {_REMOVED[name]}"
    near = difflib.get_close_matches(name, [f"--{flag.name}" for flag in FLAGS], n=1)
    hint = f" Did you mean {near[0]}?" if near else " See --help for the flags there are."
    return f"Unknown argument {name}.{hint}"
