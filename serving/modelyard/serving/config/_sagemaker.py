"""Flags of a server that Amazon SageMaker hosts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from modelyard.errors import ConfigurationError

#: The only argument that SageMaker starts a container with.
ARGUMENT = "serve"
_PORT = "8080"
_MODEL_DIR = "/opt/ml/model"


def apply_sagemaker(
    args: argparse.Namespace, environment: Mapping[str, str], *, default_name: str, image_base_path: str
) -> None:
    """Sets REST port, model and base path as SageMaker's contract has them.

    SageMaker unpacks the model's archive into ``/opt/ml/model``, passes nothing but environment variables, and calls
    the port 8080, or the one that ``SAGEMAKER_BIND_TO_PORT`` names. The archive holds the model's versions, or one
    directory of the model's name that holds them.
    """
    port = environment.get("SAGEMAKER_BIND_TO_PORT") or _PORT
    if not port.isdecimal() or not 0 < int(port) <= 65535:
        raise ConfigurationError(f"SAGEMAKER_BIND_TO_PORT is {port!r}; expected a port from 1 to 65535.")
    args.rest_api_port = int(port)
    if args.model_base_path or args.model_config_file or args.model_repository:
        return
    if args.model_name == default_name:
        args.model_name = environment.get("MODEL_NAME") or "model"
    given = environment.get("MODEL_BASE_PATH")
    folder = Path(given if given and given != image_base_path else _MODEL_DIR)
    named = folder / args.model_name
    args.model_base_path = str(named if named.is_dir() else folder)
