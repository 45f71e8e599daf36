"""What MLflow stores of a version, and how it loads it."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd  # type: ignore[import-untyped]
from mlflow.models import Model

from modelyard.artifact import find_version, locate
from modelyard.batch import BatchModel, to_frame
from modelyard.errors import ConfigurationError

_FLAVOR = "modelyard"
_ARTIFACTS = "artifacts"


class _Served(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """What MLflow calls: a DataFrame is answered with one, arrays by name with arrays by name."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments

    def load_context(self, context: Any) -> None:
        self._model = BatchModel(str(Path(context.artifacts["version"]).parent), **self._arguments)

    def predict(self, context: Any, model_input, params=None):  # type: ignore[no-untyped-def] # hints would be enforced
        if not isinstance(model_input, pd.DataFrame):
            return self._model(model_input)
        return to_frame(self._model({name: model_input[name].to_numpy() for name in model_input.columns}))


def save_model(
    model: str,
    path: str | Path,
    *,
    version: str = "latest",
    mlflow_model: Any = None,
    signature: str = "serving_default",
    pip_requirements: list[str] | None = None,
    **options: Any,
) -> None:
    """Writes a published version as an MLflow model, with its files as they were verified.

    Args:
        model: ``<repository>/<model>``, on this machine.
        path: The folder to make.
        version: A number, a label or ``latest``.
        mlflow_model: The description that MLflow began.
        signature: Which of the version's signatures MLflow calls.
        pip_requirements: None for this modelyard with what serves the version.
        options: Of ``mlflow.pyfunc.save_model``.

    Raises:
        ConfigurationError: The model is in an object store.
        ModelNotFoundError: There is no such model or version.
    """
    location = locate(model)
    if not isinstance(location, Path):
        raise ConfigurationError(f"{model} is in an object store; expected a folder, from which MLflow copies.")
    found = find_version(location, version)
    mlflow_model = Model() if mlflow_model is None else mlflow_model
    release = importlib.metadata.version("modelyard")
    mlflow_model.add_flavor(_FLAVOR, modelyard_version=release, model=location.name, version=found.number)
    mlflow.pyfunc.save_model(
        path,
        python_model=_Served({"signature": signature}),
        artifacts={"version": str(found.path)},
        mlflow_model=mlflow_model,
        pip_requirements=pip_requirements or [f"modelyard[serving,mlflow]=={release}"],
        **options,
    )


def log_model(model: str, name: str, *, registered_model_name: str | None = None, **options: Any) -> Any:
    """Logs a published version to the active run, or to a new one, and registers it where a name is given.

    Args:
        model: ``<repository>/<model>``, on this machine.
        name: Its name in MLflow.
        registered_model_name: Its name in the registry; None to leave it out.
        options: Of :func:`save_model`.

    Returns:
        MLflow's ``ModelInfo``.

    Raises:
        ConfigurationError: The model is in an object store.
        ModelNotFoundError: There is no such model or version.
    """
    flavor = sys.modules["modelyard.mlflow"]
    return Model.log(
        None, flavor=flavor, name=name, registered_model_name=registered_model_name, model=model, **options
    )


def load_model(model_uri: str, **arguments: Any) -> BatchModel:
    """The version of an MLflow model, as a function from columns to columns.

    Args:
        model_uri: As MLflow has them: ``runs:/...``, ``models:/...``, a folder.
        arguments: Of :class:`modelyard.batch.BatchModel`.

    Raises:
        ConfigurationError: The MLflow model has another flavor.
    """
    folder = Path(mlflow.artifacts.download_artifacts(model_uri))
    flavors = Model.load(str(folder)).flavors
    if _FLAVOR not in flavors:
        raise ConfigurationError(f"{model_uri} has the flavors {sorted(flavors)}; expected {_FLAVOR!r}.")
    return BatchModel(str(folder / _ARTIFACTS), **arguments)
