"""Flags of a server that Amazon SageMaker hosts."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from modelyard.errors import ConfigurationError
from modelyard.serving.backends import available_runtimes

_LOG = logging.getLogger("modelyard.serving")

#: The only argument that SageMaker starts a container with.
ARGUMENT = "serve"
_PORT = "8080"
_MODEL_DIR = "/opt/ml/model"
#: Of SageMaker's own TensorFlow container: the model of requests that name none, and the folder of its scripts.
_DEFAULT_MODEL = "SAGEMAKER_TFS_DEFAULT_MODEL_NAME"
_SCRIPTS = "code"
#: Folders above a version's: SageMaker's SDK writes export/Servo/1.
_DEPTH = 3


def apply_sagemaker(args: argparse.Namespace, environment: Mapping[str, str], *, image_base_path: str) -> None:
    """Sets REST port, model and base path as SageMaker's contract has them.

    SageMaker unpacks the model's archive into ``/opt/ml/model``, passes nothing but environment variables, and calls
    the port 8080, or the one that ``SAGEMAKER_BIND_TO_PORT`` names. The archive holds the model's versions, or models
    in folders of their names, as SageMaker's own TensorFlow container takes them.
    """
    port = environment.get("SAGEMAKER_BIND_TO_PORT") or _PORT
    if not port.isdecimal() or not 0 < int(port) <= 65535:
        raise ConfigurationError(f"SAGEMAKER_BIND_TO_PORT is {port!r}; expected a port from 1 to 65535.")
    args.rest_api_port = int(port)
    if environment.get("SAGEMAKER_MULTI_MODEL", "").lower() == "true":
        raise ConfigurationError(
            "SAGEMAKER_MULTI_MODEL is true, and SageMaker's /models to load and unload by is not served here; leave it "
            "out, and put the models into one archive, as NAME/1: requests choose by tfs-model-name."
        )
    without_effect = sorted(name for name in environment if name.startswith(("SAGEMAKER_TFS_", "SAGEMAKER_GUNICORN_")))
    if _DEFAULT_MODEL in without_effect:
        without_effect.remove(_DEFAULT_MODEL)
    if without_effect:
        _LOG.warning("no effect here: %s; requests that wait share batches as it is", ", ".join(without_effect))
    if args.model_base_path or args.model_config_file or args.model_repository:
        return
    given = environment.get("MODEL_BASE_PATH")
    folder = Path(given if given and given != image_base_path else _MODEL_DIR)
    if (folder / _SCRIPTS / "inference.py").is_file():
        _LOG.warning(
            "%s is not run: requests are TensorFlow Serving's, rows as JSON, or CSV; what it changes in them belongs "
            "into the model or the client",
            folder / _SCRIPTS / "inference.py",
        )
    _find(args, folder, environment, asked=args.model_name or "")


def _find(args: argparse.Namespace, folder: Path, environment: Mapping[str, str], *, asked: str) -> None:
    """Sets the model, or the repository of models, that the archive holds."""
    name = asked or environment.get("MODEL_NAME") or "model"
    models = [] if (folder / name).is_dir() else _models_below(folder)
    wanted = environment.get(_DEFAULT_MODEL) or environment.get("MODEL_NAME") or ""
    if len(models) > 1 and len({model.parent for model in models}) == 1 and not asked:
        args.model_repository = str(models[0].parent)
        args.sagemaker_default = wanted or models[0].name
        _LOG.info("requests to /invocations that name no model are for %s", args.sagemaker_default)
    elif len(models) > 1:
        raise ConfigurationError(
            f"{folder} holds several models: {', '.join(map(str, models))}; expected one, or their folders beside "
            "each other."
        )
    elif models and models[0] != folder:
        args.model_base_path = str(models[0])
        args.model_name = asked or environment.get("MODEL_NAME") or models[0].name
    else:
        args.model_base_path = str(folder / name if (folder / name).is_dir() else folder)
        args.model_name = name


def _models_below(folder: Path) -> list[Path]:
    """The folders that hold versions, SageMaker's scripts left out."""
    found = []
    for path, folders, _ in os.walk(folder):
        here = Path(path)
        if any(each.isdecimal() and available_runtimes(here / each) for each in folders):
            found.append(here)
            folders.clear()
        elif len(here.relative_to(folder).parts) >= _DEPTH:
            folders.clear()
        else:
            folders[:] = [each for each in folders if each != _SCRIPTS and not each.startswith(".")]
    return sorted(found)
