"""modelyard.mlflow, with MLflow itself: logged, registered, loaded, and called as MLflow calls models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

import modelyard.mlflow as flavor
from modelyard.batch import BatchModel
from modelyard.errors import ConfigurationError, MissingDependencyError, ModelNotFoundError
from tests.support.models import publish_affine, publish_words


def test_without_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.partition(".")[0] == "mlflow" or name == "modelyard.mlflow._flavor":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'modelyard\[mlflow\]'"):
        _ = flavor.log_model


@pytest.mark.filterwarnings("ignore")
def test_the_flavor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow: Any = pytest.importorskip("mlflow", reason="mlflow is not installed: modelyard[mlflow]")
    monkeypatch.chdir(tmp_path)
    # Its databases come with the whole of MLflow; here is the part without.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    publish_affine(tmp_path / "repository" / "affine", slope=2.0, intercept=1.0)
    publish_affine(tmp_path / "repository" / "affine", slope=3.0, intercept=1.0)
    model = str(tmp_path / "repository" / "affine")
    info = flavor.log_model(model, "affine", version="1", registered_model_name="affine")
    x = np.arange(4, dtype=np.float32)
    assert info.flavors["modelyard"]["version"] == 1
    (output,) = flavor.load_model(info.model_uri)({"x": x}).values()
    np.testing.assert_allclose(output, 2 * x + 1)
    loaded = mlflow.pyfunc.load_model("models:/affine/1")
    (column,) = loaded.predict(pd.DataFrame({"x": x})).to_dict("list").values()
    np.testing.assert_allclose(column, 2 * x + 1)
    (answers,) = loaded.predict({"x": x}).values()
    np.testing.assert_allclose(answers, 2 * x + 1)
    flavor.save_model(model, tmp_path / "saved")
    (output,) = flavor.load_model(str(tmp_path / "saved"))({"x": x}).values()
    np.testing.assert_allclose(output, 3 * x + 1)
    with pytest.raises(ModelNotFoundError):
        flavor.save_model(model, tmp_path / "none", version="9")
    with pytest.raises(ConfigurationError, match="is in an object store"):
        flavor.save_model("memory://bucket/models/affine", tmp_path / "none")
    publish_words(tmp_path / "words")
    mlflow.models.Model().save(str(tmp_path / "words" / "MLmodel"))
    with pytest.raises(ConfigurationError, match="has the flavors .*; expected 'modelyard'"):
        flavor.load_model(str(tmp_path / "words"))


@pytest.mark.filterwarnings("ignore")
def test_models_that_mlflow_wrote_are_exported(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: modelyard[mlflow]")
    import keras
    import mlflow.keras
    import mlflow.onnx
    import mlflow.tensorflow
    import onnx

    from modelyard.export import ExportOptions, export

    model = keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(3)])
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    expected = np.asarray(model(x))
    options = ExportOptions(min_examples=16, runtimes=(), formats=("onnx",))
    requirements: Any = {"pip_requirements": ["numpy"]}
    mlflow.tensorflow.save_model(model, str(tmp_path / "tensorflow"), **requirements)
    mlflow.keras.save_model(model, str(tmp_path / "keras"), **requirements)
    for name in ("tensorflow", "keras", "onnx"):
        version = export(tmp_path / name, tmp_path / "models" / name, data=x, options=options).version
        (found,) = BatchModel(str(tmp_path / "models" / name))({"x": x}).values()
        np.testing.assert_allclose(found, expected, atol=1e-5)
        if name == "keras":
            graph = onnx.load(version.path / "onnx" / "serving_default.onnx")
            mlflow.onnx.save_model(graph, str(tmp_path / "onnx"), **requirements)
