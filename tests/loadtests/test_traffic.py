"""Requests for any model: from files, from warm-up requests, and random; over every API, against real servers."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelyard.artifact import WARMUP_FILE
from modelyard.clients import SignatureInfo, TensorInfo
from modelyard.errors import ConfigurationError, ModelNotFoundError, SignatureNotFoundError, UnavailableError
from modelyard.loadtests import LoadTestOptions, Measured
from modelyard.loadtests.generate import run_open
from modelyard.loadtests.options import RANDOM, constant
from modelyard.loadtests.traffic import APIS, ImageTraffic, Traffic, find_traffic
from modelyard.loadtests.traffic._rows import rows_of_file
from modelyard.wire import array_to_tensor, serving_pb2, tensorflow_pb2
from tests.support.admin import config_text, model_text
from tests.support.models import publish_pairs, publish_words
from tests.support.records import write_records
from tests.support.saved_models import save_tf1_half_plus_two
from tests.support.server import RunningServer, free_port, serve

ROWS = 12


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models that are no image classifiers; one has requests that warm it up."""
    folder = tmp_path_factory.mktemp("repository")
    version = publish_pairs(folder / "pairs")
    write_records(version.path / WARMUP_FILE, [log.SerializeToString() for log in pair_logs()])
    publish_words(folder / "words")
    return folder


@pytest.fixture(scope="module")
def running(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
    config = folder / "models.config"
    config.write_text(config_text(*(model_text(name, repository / name) for name in ("pairs", "words"))))
    with serve(None, model="pairs", log_dir=folder, flags=[f"--model_config_file={config}"]) as server:
        server.wait_until(lambda: '"AVAILABLE"' in server.get("/v1/models/words")[1], 60, "words AVAILABLE")
        yield server


def pairs(rows: int = ROWS) -> dict[str, np.ndarray]:
    values = np.arange(rows * 6, dtype=np.float32).reshape(rows, 2, 3)
    return {"a": values[:, 0], "b": values[:, 1]}


def words() -> dict[str, np.ndarray]:
    rows = np.arange(ROWS)
    return {"ids": np.stack([rows % 3, rows // 3 % 3], axis=1).astype(np.int32), "word": np.array(list("abcdefghijkl"))}


def pair_logs(error: float = 0.0) -> list[serving_pb2.PredictionLog]:
    """Three Predict calls of four rows with their answers, of which the last row's may be wrong."""
    found = []
    for part in range(3):
        message = serving_pb2.PredictionLog()
        message.predict_log.request.model_spec.name = "another"
        inputs = {name: array[4 * part : 4 * part + 4] for name, array in pairs().items()}
        y = 2 * inputs["a"] + inputs["b"]
        y[3] += error
        for name, array in inputs.items():
            message.predict_log.request.inputs[name].CopyFrom(array_to_tensor(array))
        for name, array in {"y": y, "s": y.sum(axis=1)}.items():
            message.predict_log.response.outputs[name].CopyFrom(array_to_tensor(array))
        found.append(message)
    return found


def write(folder: Path, model: str, form: str) -> Path:
    """The rows of a model in a file."""
    columns = pairs() if model == "pairs" else words()
    path = folder / f"rows.{form}"
    if form == "npz":
        np.savez(path, **columns)  # type: ignore[arg-type]
        return path
    rows = [{name: column[index].tolist() for name, column in columns.items()} for index in range(ROWS)]
    if form == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path
    examples = []
    for row in rows:
        example = tensorflow_pb2.Example()
        for name, value in row.items():
            feature = example.features.feature[name]
            if name == "ids":
                feature.int64_list.value.extend(value)
            elif name == "word":
                feature.bytes_list.value.append(value.encode())
            else:
                feature.float_list.value.extend(value)
        examples.append(example.SerializeToString())
    write_records(path, examples)
    return path


def options(server: RunningServer, **changes: Any) -> LoadTestOptions:
    return LoadTestOptions(grpc_url=f"grpc://{server.grpc_address}", rest_url=server.rest_url, **changes)


def sent(load: LoadTestOptions, traffic: Traffic, seconds: float = 0.4) -> list[Measured]:
    requests = traffic.requests(load, traffic.kinds(load))
    return run_open(load, requests, constant(120, seconds), poisson=False).log.by_kind()


@pytest.mark.parametrize("model", ["pairs", "words"])
@pytest.mark.parametrize("form", ["npz", "jsonl", "tfrecord"])
def test_rows_of_a_file_over_every_api(running: RunningServer, tmp_path: Path, model: str, form: str) -> None:
    load = options(running, model=model, data=write(tmp_path, model, form), kinds=tuple(APIS), rows=3)
    traffic = find_traffic(load)
    assert traffic.text == f"{load.data}: 12 rows for signature serving_default"
    requests = traffic.requests(load, traffic.kinds(load))
    columns = pairs() if model == "pairs" else words()
    for request in requests:
        # What is sent are rows of the file, whole ones, and together all of them.
        name = "a" if model == "pairs" else "word"
        wanted = columns[name].tolist() if name == "a" else [word.encode() for word in columns[name]]
        at = [wanted.index(value) for value in request.inputs[name].tolist()]
        for key, array in request.inputs.items():
            if array.dtype != object:
                np.testing.assert_array_equal(array, columns[key][at])
    rows = sent(load, traffic)
    assert {row.name for row in rows} == {f"{api} serving_default" for api in APIS}
    # Nothing is known about the answers: agreement is not claimed.
    assert [(row.failures, row.known) for row in rows] == [(0, 0)] * 4
    assert min(row.requests for row in rows) > 0


@pytest.mark.parametrize("model", ["pairs", "words"])
def test_random_values_over_every_api(running: RunningServer, model: str) -> None:
    load = options(running, model=model, kinds=tuple(APIS), rows=2)
    traffic = find_traffic(load, seed=3)
    described = "a float32[-1,3], b float32[-1,3]" if model == "pairs" else "ids int32[-1,2], word string[-1]"
    assert traffic.text.startswith(f"random values for signature serving_default ({described}), seed 3 (give --data")
    assert [(row.failures, row.known) for row in sent(load, traffic)] == [(0, 0)] * 4
    again = find_traffic(load, seed=3).requests(load, ["grpc serving_default"])
    assert [each.body for each in again] == [each.body for each in traffic.requests(load, ["grpc serving_default"])]
    other = find_traffic(load, seed=4).requests(load, ["grpc serving_default"])
    assert [each.body for each in other] != [each.body for each in again]


def test_labels_tell_the_agreement(running: RunningServer, tmp_path: Path) -> None:
    """``words`` has no class_id: its one float output with a row of scores tells the class."""
    columns = words()
    found = []
    for name, labels in (("right", columns["ids"][:, 0]), ("wrong", (columns["ids"][:, 0] + 1) % 3)):
        path = tmp_path / f"{name}.npz"
        np.savez(path, **columns, labels=labels.astype(np.int64))  # type: ignore[arg-type]
        load = options(running, model="words", data=path, rows=2)
        found.append([(row.failures, row.matches / row.known) for row in sent(load, find_traffic(load))])
    assert found == [[(0, 1.0)] * 2, [(0, 0.0)] * 2]
    labelled = tmp_path / "sums.jsonl"
    labelled.write_text('{"a": [1, 2, 3], "b": [1, 1, 1], "label": 1}\n')
    # The sums are 3, 5 and 7: the largest is not the one with the number 1.
    load = options(running, model="pairs", data=labelled)
    for row in sent(load, find_traffic(load)):
        assert (row.failures, row.matches) == (0, 0)
        assert row.known == row.requests


def test_labels_that_no_output_can_be_compared_with(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, x=np.zeros(3), labels=np.arange(3))
    x = TensorInfo(name="x", dtype="float32", shape=(-1,))
    rows = rows_of_file(path, SignatureInfo(name="s", method="", inputs={"x": x}, outputs={"x": x}))
    assert rows.note == "; its labels are not used: no output tells a class"
    assert [row.expected for row in rows.batches(1, 9, random.Random(0))] == [None] * 3


def test_rows_of_different_shapes_are_never_put_together(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps([0] * size)}\n" for size in (2, 3, 3, 5)))
    x = TensorInfo(name="x", dtype="int64", shape=(-1, -1))
    signature = SignatureInfo(name="s", method="", inputs={"x": x}, outputs={})
    found = [row.inputs["x"].shape for row in rows_of_file(path, signature).batches(4, 9, random.Random(0))]
    assert sorted(found) == [(4, 2), (4, 3), (4, 3), (4, 5)]


def test_a_signature_without_rows_is_sent_whole_requests(tmp_path: Path) -> None:
    path = tmp_path / "matrices.npz"
    np.savez(path, x=np.arange(12.0).reshape(3, 2, 2))
    x = TensorInfo(name="x", dtype="float32", shape=(2, 2))
    rows = rows_of_file(path, SignatureInfo(name="s", method="", inputs={"x": x}, outputs={}))
    assert [row.inputs["x"].shape for row in rows.batches(1, 9, random.Random(0))] == [(2, 2)] * 3
    with pytest.raises(ConfigurationError, match=r"which takes x float32\[2,2\]: send one at a time"):
        list(rows.batches(2, 9, random.Random(0)))


def test_floats_of_another_width_are_cast(running: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, **{name: array.astype(np.float64) for name, array in pairs().items()})  # type: ignore[arg-type]
    load = options(running, model="pairs", data=path)
    requests = find_traffic(load).requests(load, ["grpc serving_default"])
    assert {array.dtype.name for request in requests for array in request.inputs.values()} == {"float32"}
    assert len(requests) == ROWS


def test_recorded_answers_are_expected_row_by_row(running: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "log.tfrecord"
    write_records(path, [log.SerializeToString() for log in pair_logs(error=1.0)])
    load = options(running, model="pairs", data=path, rows=4, kinds=("grpc", "rest-v2"))
    traffic = find_traffic(load)
    assert traffic.text == f"recorded requests of {path}: 12 rows for signature serving_default"
    for row in sent(load, traffic, 2.0):
        assert row.failures == 0
        # One row of four is wrong; requests are rows in another order, taken about equally often.
        assert row.matches / row.known == pytest.approx(0.75, abs=0.1)


def test_calls_other_than_predict_go_as_they_are(tmp_path: Path) -> None:
    save_tf1_half_plus_two(tmp_path / "half" / "1")
    example = tensorflow_pb2.Example()
    example.features.feature["x"].float_list.value.append(2.0)
    logs = [serving_pb2.PredictionLog() for _ in range(3)]
    for kind, log in (("classify", logs[0].classify_log), ("regress", logs[1].regress_log)):
        log.request.model_spec.name = "another"
        log.request.model_spec.version.value = 9
        log.request.model_spec.signature_name = f"{kind}_x_to_y"
        log.request.input.example_list.examples.append(example)
    logs[1].regress_log.response.result.regressions.add(value=3.0)
    task = logs[2].multi_inference_log.request.tasks.add(method_name="tensorflow/serving/regress")
    task.model_spec.name, task.model_spec.signature_name = "another", "regress_x_to_y2"
    logs[2].multi_inference_log.request.input.example_list.examples.append(example)
    write_records(tmp_path / "half" / "1" / WARMUP_FILE, [log.SerializeToString() for log in logs])
    with serve(tmp_path / "half", model="half", log_dir=tmp_path) as server:
        load = options(server, model="half")
        traffic = find_traffic(load, served=tmp_path)
        assert "1 calls of Classify, 1 calls of Regress, 1 calls of MultiInference (calls other" in traffic.text
        rows = {row.name: row for row in sent(load, traffic)}
        assert set(rows) == {"grpc classify", "grpc regress", "grpc multiinference"}
        assert [row.failures for row in rows.values()] == [0, 0, 0]
        assert rows["grpc regress"].matches == rows["grpc regress"].known > 0
        with pytest.raises(ConfigurationError, match="recorded calls of regress are sent over gRPC as they are"):
            traffic.kinds(options(server, model="half", kinds=("rest regress",)))
        examples = tmp_path / "examples.tfrecord"
        write_records(examples, [example.SerializeToString()])
        load = options(server, model="half", data=examples, kinds=("grpc regress_x_to_y", "rest regress_x_to_y"))
        assert [row.failures for row in sent(load, find_traffic(load))] == [0, 0]


def test_where_requests_come_from(running: RunningServer, repository: Path, server: RunningServer) -> None:
    warm = "recorded requests of .*/pairs/1/assets.extra/tf_serving_warmup_requests: 12 rows for signature"
    load = options(running, model="pairs")
    assert re.match(warm, find_traffic(load, served=repository).text)
    for folder in (repository, repository / "pairs", repository / "pairs" / "1"):
        assert re.match(warm, find_traffic(options(running, model="pairs", repository=folder)).text)
    file = repository / "pairs" / "1" / WARMUP_FILE
    assert re.match(warm, find_traffic(options(running, model="pairs", data=file)).text)
    assert find_traffic(load).text.startswith("random values")
    assert find_traffic(options(running, model="pairs", data=RANDOM), served=repository).text.startswith("random")
    absent = find_traffic(options(running, model="words", repository=repository)).text
    assert f"({repository} has no warm-up requests for it: give --data FILE" in absent
    # The demo's model is sent images, whose classes are known, as long as nobody says more.
    demo = options(server, model="fashion")
    assert isinstance(find_traffic(demo), ImageTraffic)
    assert isinstance(find_traffic(options(running, model="pairs", kinds=("grpc image",))), ImageTraffic)
    assert find_traffic(options(server, model="fashion", data=RANDOM)).text.startswith("random values")


def test_answers_with_nan_are_wrong(running: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "nan.npz"
    rows = pairs()
    rows["a"][3, 1] = np.nan
    np.savez(path, **rows)  # type: ignore[arg-type]
    load = options(running, model="pairs", data=path, kinds=("grpc", "rest-v2"))
    traffic = find_traffic(load)
    log = run_open(load, traffic.requests(load, traffic.kinds(load)), constant(200, 0.5), poisson=False).log
    assert 0 < log.measured().failures < log.measured().requests / 2
    assert all(re.search("Wrong answer: [ys] has 1 values that are NaN", text) for text in log.reasons)


@pytest.mark.parametrize(
    ("name", "content", "changes", "error", "text"),
    [
        ("a.npz", {"a": np.zeros((2, 4)), "b": np.zeros((2, 3))}, {}, ConfigurationError, r"a\.npz:0 does not fit"),
        ("a.npz", {"a": np.zeros((2, 3))}, {}, ConfigurationError, "missing 'b'"),
        ("a.npz", {"a": np.zeros((2, 3)), "c": np.zeros((2, 3))}, {}, ConfigurationError, "no input 'c'"),
        ("a.npz", {**pairs(2), "labels": np.array(["x", "y"])}, {}, ConfigurationError, "expected the number of a cl"),
        ("a.jsonl", "", {}, ConfigurationError, "holds no rows"),
        ("a.jsonl", "{\n", {}, ConfigurationError, "line 1: not JSON"),
        ("a.xml", "", {}, ConfigurationError, "expected images"),
        ("a.tfrecord", "no records", {}, ConfigurationError, "is damaged"),
        ("absent.npz", None, {}, ConfigurationError, "cannot be read"),
        ("absent.tfrecord", None, {}, ConfigurationError, "Cannot read"),
        ("a.jsonl", "1\n", {"model": "shoes"}, ModelNotFoundError, "Name the model with --model"),
        ("a.jsonl", "1\n", {"kinds": ("grpc fit",)}, SignatureNotFoundError, "no signature 'fit'; it has serving_def"),
        ("a.jsonl", "1\n", {"grpc_url": f"grpc://127.0.0.1:{free_port()}"}, UnavailableError, "cannot be reached"),
    ],
)
def test_data_that_cannot_be_sent(
    running: RunningServer, tmp_path: Path, name: str, content: Any, changes: Any, error: type[Exception], text: str
) -> None:
    path = tmp_path / name
    if isinstance(content, dict):
        np.savez(path, **content)
    elif content is not None:
        path.write_text(content)
    load = LoadTestOptions(
        **{
            "grpc_url": f"grpc://{running.grpc_address}",
            "rest_url": running.rest_url,
            "model": "pairs",
            "data": path,
            **changes,
        }
    )
    with pytest.raises(error, match=text):
        find_traffic(load)


def test_an_archive_for_several_signatures(running: RunningServer, tmp_path: Path) -> None:
    """As ``modelyard export --data`` takes it."""
    path = tmp_path / "all.npz"
    arrays = {f"serving_default/{name}": array for name, array in pairs().items()}
    np.savez(path, **arrays, **{"other/x": np.zeros(12)})  # type: ignore[arg-type]
    load = options(running, model="pairs", data=path)
    assert find_traffic(load).text == f"{path}: 12 rows for signature serving_default"
