"""From the command line to the options of a server."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from modelyard.artifact import Location, load_trusted_keys, locate
from modelyard.errors import ConfigurationError
from modelyard.serving.backends import device_runtime
from modelyard.serving.config import _sagemaker
from modelyard.serving.config._batching import BatchParameters, read_batch_parameters
from modelyard.serving.config._flag import build
from modelyard.serving.config._models import (
    ModelConfig,
    base_location,
    check_name,
    models_from_message,
    models_of_repository,
    not_models,
)
from modelyard.serving.config._options import FLAGS, ServerOptions
from modelyard.serving.config._parser import parse_arguments
from modelyard.serving.config._text_proto import read_text_proto
from modelyard.serving.config._tls import read_tls_config
from modelyard.serving.config._traffic import traffic_options
from modelyard.serving.machine import available_cpus
from modelyard.wire import serving_pb2

_LOG = logging.getLogger("modelyard.serving")

#: With batching, calls of Classify and Regress each hold a thread while they wait for their batch.
_WAITING_THREADS = 64
#: Upstream's, where no file of parameters names them: a label of metrics.
_BATCH_POOL = "model_server_batch_threads"
_IMAGE_MODEL_NAME = "model"
_IMAGE_BASE_PATH = "/models"


def parse_flags(argv: list[str], environment: Mapping[str, str] | None = None) -> ServerOptions:
    """Parses the command line.

    Flags of tensorflow_model_server that have no effect here are accepted, with
    one line in the log that says what to use instead.

    Args:
        argv: Arguments without the program's name.
        environment: Where ``MODEL_NAME`` and ``MODEL_BASE_PATH`` are looked up, which TensorFlow Serving's image
            reads, and ``MODELYARD_DEVICE``; None for nowhere.

    Raises:
        ConfigurationError: An unknown flag, a value that makes no sense, or a configuration file that cannot be used.
    """
    environment = environment or {}
    args = parse_arguments(argv, environment)
    for flag in FLAGS:
        if flag.effect == "ignored" and getattr(args, flag.name) != flag.default:
            _LOG.warning("--%s has no effect: %s", flag.name, flag.note)
    if args.sagemaker:
        _sagemaker.apply_sagemaker(args, environment, image_base_path=_IMAGE_BASE_PATH)
    _check_combinations(args)
    cpus = available_cpus()
    options = build(ServerOptions, args)
    _check_device(args)
    _check_transport(args, options.transport)
    batching = _batching(args, cpus)
    repository = _repository(args, environment)
    access, control = options.access, args.model_control_mode
    trusted_keys = load_trusted_keys([Path(path) for path in args.trusted_key])
    return replace(
        options,
        models=_models(args, options.model_config_file, repository, environment),
        model_repository=repository,
        watch=replace(
            options.watch,
            poll_wait_s=0.0 if control == "none" else options.watch.poll_wait_s,
            explicit=control == "explicit",
            trusted_keys=trusted_keys,
        ),
        load=replace(
            options.load,
            cpus=cpus,
            interpreters=args.num_tflite_pools or cpus,
            trusted_keys=trusted_keys,
        ),
        threads=args.tensorflow_session_parallelism or (_WAITING_THREADS if batching else cpus),
        max_body_bytes=options.limits.largest(options.max_body_bytes),
        tls=read_tls_config(access.ssl_config_file, access.ssl_client_ca_file) if access.ssl_config_file else None,
        batching=batching,
        warmup_iterations=max(1, args.num_request_iterations_for_warmup) if args.enable_model_warmup else 0,
        traffic=traffic_options(args),
    )


def _check_combinations(args: argparse.Namespace) -> None:
    if args.port == 0 and args.rest_api_port == 0 and not args.grpc_socket_path:
        raise ConfigurationError("Both --port and --rest_api_port are 0; expected at least one port to serve on.")
    if args.port == args.rest_api_port != 0:
        raise ConfigurationError(
            f"--port and --rest_api_port are both {args.port}; expected two numbers, one for gRPC and one for REST."
        )
    if args.monitoring_config_file and args.rest_api_port == 0:
        _LOG.warning(
            "--monitoring_config_file=%s has no effect: metrics are on the REST port, and there is none; set "
            "--rest_api_port=8501, too",
            args.monitoring_config_file,
        )
    if args.console and args.rest_api_port == 0:
        raise ConfigurationError(
            "--console is served on the REST port, and there is none; set --rest_api_port=8501, too."
        )
    parts = (args.tensorflow_intra_op_parallelism, args.tensorflow_inter_op_parallelism)
    if args.tensorflow_session_parallelism and min(parts) > 0:
        raise ConfigurationError(
            "--tensorflow_session_parallelism, --tensorflow_intra_op_parallelism and --tensorflow_inter_op_parallelism "
            "are all set; expected the first alone, or the other two."
        )
    if args.ssl_client_ca_file and not args.ssl_config_file:
        raise ConfigurationError(
            f"--ssl_client_ca_file={args.ssl_client_ca_file} is set, and --ssl_config_file is not: clients show "
            "certificates over TLS only."
        )
    if args.probe_memory_mb and sys.platform != "linux":
        raise ConfigurationError(f"--probe_memory_mb={args.probe_memory_mb} is for Linux only; leave it out here.")
    if args.probe_loads and not args.probe_timeout_seconds:
        raise ConfigurationError("--probe_timeout_seconds=0 would refuse every version; expected more than 0.")


def _check_device(args: argparse.Namespace) -> None:
    needed = device_runtime(args.device)
    if needed is not None and (args.prefer_tflite_model or args.runtime not in ("", needed)):
        other = "--prefer_tflite_model" if args.prefer_tflite_model else f"--runtime={args.runtime}"
        raise ConfigurationError(
            f"--device={args.device} is for {needed}, and {other} is set, too; expected one of the two."
        )


def _check_transport(args: argparse.Namespace, transport: str) -> None:
    for flag in FLAGS:
        value = getattr(args, flag.name, None)
        if flag.native_only and value != flag.default and transport != "native":
            raise ConfigurationError(
                f"--{flag.name}={value} is no limit of --transport={transport}; --transport=native has it."
            )


def _models(
    args: argparse.Namespace, config_file: Location | None, repository: Location | None, environment: Mapping[str, str]
) -> tuple[ModelConfig, ...]:
    if repository is not None:
        models = models_of_repository(repository)
        for sentence in not_models(repository, models):
            _LOG.warning("%s", sentence)
    elif config_file is not None:
        message = read_text_proto(config_file, serving_pb2.ModelServerConfig(), flag="--model_config_file")
        models = models_from_message(message)
    else:
        models = _single_model(args, environment)
    if args.sagemaker and not models:
        raise ConfigurationError(f"--sagemaker answers for a model, and {repository or config_file} has none.")
    default = getattr(args, "sagemaker_default", "")
    if default:
        # The first is the one that requests need not name.
        models = tuple(sorted(models, key=lambda model: model.name != default))
        if models and models[0].name != default:
            raise ConfigurationError(
                f"SAGEMAKER_TFS_DEFAULT_MODEL_NAME (or MODEL_NAME) is {default!r}, and {repository} has no such model; "
                f"expected one of {', '.join(model.name for model in models)}."
            )
    elif args.sagemaker and repository is not None and len(models) > 1:
        raise ConfigurationError(
            f"--sagemaker answers for one model, and --model_repository={repository} has {len(models)}: "
            f"{', '.join(model.name for model in models)}. Use --model_base_path={repository}/NAME --model_name=NAME "
            "for one of them."
        )
    return models


def _repository(args: argparse.Namespace, environment: Mapping[str, str]) -> Location | None:
    others = {name: getattr(args, name) for name in ("model_name", "model_base_path", "model_config_file")}
    given = {name: value for name, value in others.items() if value}
    if not args.model_repository:
        folder = environment.get("MODEL_BASE_PATH")
        if given or not folder or environment.get("MODEL_NAME"):
            return None
        # Upstream's image knows no repository: there, this is a folder that holds the model called model.
        path = Path(folder)
        # Not Path.is_dir, which raises where a folder belongs to another user.
        return path if os.path.isdir(path) and not os.path.isdir(path / _IMAGE_MODEL_NAME) else None
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
    if environment.get("MODEL_NAME") or environment.get("MODEL_BASE_PATH"):
        # What the entry point of TensorFlow Serving's image makes of them; each flag that follows it wins there too.
        folder = environment.get("MODEL_NAME") or _IMAGE_MODEL_NAME
        base_path = base_path or f"{environment.get('MODEL_BASE_PATH') or _IMAGE_BASE_PATH}/{folder}"
        name = folder if name is None else name
    if not base_path:
        raise ConfigurationError(
            "--model_base_path is required: the directory that holds the model's versions. For several models, "
            "--model_repository is the directory that holds theirs, or --model_config_file a file that lists them."
        )
    if name is None:
        name = next(str(flag.default) for flag in FLAGS if flag.name == "model_name")
    if not name:
        raise ConfigurationError("--model_name is empty; expected the model's name in requests.")
    check_name(name, "--model_name")
    return (ModelConfig(name=name, base_path=base_location(base_path, what=f"model {name} (--model_base_path)")),)


def _batching(args: argparse.Namespace, cpus: int) -> BatchParameters | None:
    if not args.enable_batching:
        if args.batching_parameters_file:
            raise ConfigurationError("--batching_parameters_file was set without setting --enable_batching to true.")
        return None
    if not args.batching_parameters_file:
        return BatchParameters(threads=cpus, pool_name=_BATCH_POOL, pad_with_zeros=args.batching_zero_padding)
    file = locate(args.batching_parameters_file)
    parameters = read_batch_parameters(file, pad_with_zeros=args.batching_zero_padding)
    return parameters if parameters.threads else replace(parameters, threads=cpus)
