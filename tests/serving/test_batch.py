"""modelyard.batch: the same answers in a loop and on every engine, computed in its workers and by a server."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
from apache_beam.ml.inference.base import KeyedModelHandler, RunInference
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that, equal_to

from modelyard.batch import BatchModel, BeamModelHandler, map_in_pandas, to_frame
from modelyard.errors import (
    ConfigurationError,
    InvalidInputError,
    LoadError,
    ModelNotFoundError,
    SignatureNotFoundError,
    UnavailableError,
)
from modelyard.training.data import FashionMnist, load_fashion_mnist
from tests.support.classifier import publish_classifier
from tests.support.server import free_port, serve

IMAGES = 40


@pytest.fixture(scope="module")
def data() -> FashionMnist:
    return load_fashion_mnist()


@pytest.fixture(scope="module")
def fashion(tmp_path_factory: pytest.TempPathFactory, data: FashionMnist) -> str:
    folder = tmp_path_factory.mktemp("repository") / "fashion"
    publish_classifier(folder, data)
    return str(folder)


@pytest.fixture(scope="module", params=["workers", "server"])
def model(request: pytest.FixtureRequest, fashion: str, tmp_path_factory: Any) -> Iterator[BatchModel]:
    arguments: dict[str, Any] = {"outputs": ["label", "probabilities"], "keep": ["id"]}
    if request.param == "workers":
        yield BatchModel(fashion, threads=1, **arguments)
        return
    with serve(fashion, model="fashion", log_dir=tmp_path_factory.mktemp("log")) as server:
        yield BatchModel("fashion", server=f"grpc://{server.grpc_address}", **arguments)


@pytest.fixture(scope="module")
def columns(data: FashionMnist) -> dict[str, Any]:
    pixels = (data.test_images[:IMAGES] / 255).reshape(-1, 28, 28, 1)
    return {"id": np.arange(IMAGES), "image": pixels, "other": np.zeros(IMAGES)}


@pytest.fixture(scope="module")
def expected(fashion: str, columns: dict[str, Any]) -> dict[str, Any]:
    answers = BatchModel(fashion)({"image": columns["image"].astype(np.float32)})
    assert len(set(answers["label"])) > 5
    return answers


def test_a_loop(model: BatchModel, columns: dict[str, Any], expected: dict[str, Any]) -> None:
    answers = pickle.loads(pickle.dumps(model))(columns)
    assert list(answers) == ["id", "label", "probabilities"]
    assert answers["label"].tolist() == expected["label"].tolist()
    np.testing.assert_allclose(answers["probabilities"], expected["probabilities"], atol=1e-6)
    assert len(pickle.dumps(model)) < 5_000


def test_errors(model: BatchModel, columns: dict[str, Any], fashion: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"\['id', 'other'\]; \['image'\] are missing"):
        model({name: columns[name] for name in ("id", "other")})
    with pytest.raises(ConfigurationError, match=r"keep \(--keep\) names \['label'\], and so are outputs of the model"):
        replace(model, keep=["id", "label"])({**columns, "label": columns["id"]})
    with pytest.raises(InvalidInputError):
        model({**columns, "image": columns["image"][:, :5]})
    ragged = np.empty(2, dtype=object)
    ragged[:] = [np.zeros(3), np.zeros(2)]
    with pytest.raises(InvalidInputError, match="rows of a column of float32 differ in their shapes"):
        model({"id": [0, 1], "image": ragged})
    with pytest.raises(SignatureNotFoundError, match="absent"):
        BatchModel(model.model, server=model.server, signature="absent")(columns)
    with pytest.raises(ModelNotFoundError):
        BatchModel(model.model, server=model.server, version=9)(columns)


def test_a_model_that_cannot_be_asked(columns: dict[str, Any], fashion: str) -> None:
    with pytest.raises(LoadError, match="no file for the runtime 'litert'"):
        BatchModel(fashion, runtime="litert")(columns)
    with pytest.raises(UnavailableError, match="cannot be reached"):
        BatchModel("fashion", server=f"grpc://127.0.0.1:{free_port()}")(columns)


def test_columns_of_tables(model: BatchModel, columns: dict[str, Any], expected: dict[str, Any]) -> None:
    """As Spark, Ray and Parquet have them: a row is a flat list, or nested arrays."""
    flat = columns["image"].reshape(IMAGES, -1)
    rows = np.empty(IMAGES, object)
    rows[:] = list(flat)
    for image in (flat, rows, rows.tolist(), flat.tolist()):
        assert model({**columns, "image": image})["label"].tolist() == expected["label"].tolist()


def test_one_name_is_one_name_and_none_are_all(
    model: BatchModel, columns: dict[str, Any], expected: dict[str, Any]
) -> None:
    answers = replace(model, outputs="label", keep="id")(columns)
    assert list(answers) == ["id", "label"] and answers["label"].tolist() == expected["label"].tolist()
    assert set(replace(model, outputs=[], keep=())(columns)) == set(expected)


def test_a_data_frame_is_columns(model: BatchModel, columns: dict[str, Any], expected: dict[str, Any]) -> None:
    table = pd.DataFrame({"id": columns["id"], "image": [each.ravel() for each in columns["image"]]})
    assert model(table)["label"].tolist() == expected["label"].tolist()
    with pytest.raises(InvalidInputError, match=r"the columns \['id'\]; \['image'\] are missing"):
        model(table[["id"]])


def test_pandas_as_spark_calls_it(model: BatchModel, columns: dict[str, Any], expected: dict[str, Any]) -> None:
    frame = pd.DataFrame({"id": columns["id"], "image": list(columns["image"].reshape(IMAGES, -1))})
    found = pd.concat(map_in_pandas(model)(iter([frame[:15], frame[15:]])))
    assert list(found.columns) == ["id", "label", "probabilities"]
    assert found["id"].tolist() == list(range(IMAGES))
    assert found["label"].tolist() == [each.decode() for each in expected["label"]]
    np.testing.assert_allclose(np.stack(found["probabilities"]), expected["probabilities"], atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_tables_of_strings_and_of_no_rows() -> None:
    words = np.array([[b"a", "né".encode()], [b"", b"b"]], dtype=object)
    frame = to_frame({"word": words[:, 1], "words": words})
    assert frame["word"].tolist() == ["né", "b"] and [row.tolist() for row in frame["words"]] == [
        ["a", "né"],
        ["", "b"],
    ]
    empty = to_frame({"word": words[:0, 0], "words": words[:0], "scores": np.zeros((0, 3), np.float32)})
    assert len(empty) == 0 and list(empty.columns) == ["word", "words", "scores"]


def test_beam(model: BatchModel, columns: dict[str, Any], expected: dict[str, Any]) -> None:
    handler: Any = KeyedModelHandler(BeamModelHandler(BatchModel(model.model, server=model.server), max_batch_size=16))
    examples = [(int(key), {"image": image}) for key, image in zip(columns["id"], columns["image"], strict=True)]
    with test_pipeline.TestPipeline() as pipeline:
        labels = (
            pipeline
            | beam.Create(examples)
            | RunInference(handler)
            | beam.MapTuple(lambda key, result: (key, result.inference["label"]))
        )
        assert_that(labels, equal_to(list(enumerate(expected["label"].tolist()))))


@pytest.mark.filterwarnings("ignore")
def test_spark(
    model: BatchModel, columns: dict[str, Any], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed: modelyard[spark]")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    session = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        rows = [(int(key), image.ravel().tolist()) for key, image in zip(columns["id"], columns["image"], strict=True)]
        frame = session.createDataFrame(rows, "id long, image array<double>").repartition(2)
        schema = "id long, label string, probabilities array<float>"
        found = frame.mapInPandas(map_in_pandas(model), schema).orderBy("id").collect()
    finally:
        session.stop()
    assert [row.label for row in found] == [each.decode() for each in expected["label"]]
    np.testing.assert_allclose([row.probabilities for row in found], expected["probabilities"], atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_ray(model: BatchModel, columns: dict[str, Any], expected: dict[str, Any]) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed: modelyard[ray]")
    data = pytest.importorskip("ray.data", reason="ray.data is not installed: modelyard[ray]")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        arguments = {"server": model.server, "outputs": ["label"], "keep": ["id"]}
        found = (
            data.from_numpy(columns["image"])
            .zip(data.from_numpy(columns["id"]))
            .rename_columns({"data": "image", "data_1": "id"})
            .map_batches(
                BatchModel,
                fn_constructor_args=[model.model],
                fn_constructor_kwargs=arguments,
                batch_size=16,
                concurrency=1,
            )
            .take_all()
        )
    finally:
        ray.shutdown()
    assert {int(row["id"]): row["label"] for row in found} == dict(enumerate(expected["label"].tolist()))
