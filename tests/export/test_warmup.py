"""The warm-up file, read by the official messages and replayed by our own server."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from modelyard.artifact import WARMUP_FILE
from modelyard.errors import PublishError
from modelyard.export import ExportReport, Reference
from modelyard.export.publish import _warmup as module
from modelyard.export.publish._warmup import write_warmup
from modelyard.serving import LoadOptions, load_servable
from modelyard.serving.backends import Runtime
from modelyard.serving.metrics import Metrics
from modelyard.serving.prediction import warm_up
from tests.export.conftest import OPTIONS
from tests.support.example_models import publish_examples
from tests.support.metrics import page_of


def read(directory: Path) -> list[Any]:
    records = tf.data.TFRecordDataset(str(directory / WARMUP_FILE))
    return [prediction_log_pb2.PredictionLog.FromString(record.numpy()) for record in records]


def test_one_request_per_signature_and_batch_size(reference: Reference, tmp_path: Path) -> None:
    assert write_warmup(reference, tmp_path, model="toy") == 3 * len(OPTIONS.batch_sizes)
    found: Counter[tuple[str, int]] = Counter()
    for log in read(tmp_path):
        request = log.predict_log.request
        name = request.model_spec.signature_name
        assert request.model_spec.name == "toy"
        arrays = {key: tf.make_ndarray(tensor) for key, tensor in request.inputs.items()}
        assert set(arrays) == set(reference.data.inputs[name])
        for key, values in arrays.items():
            np.testing.assert_array_equal(values, reference.data.inputs[name][key][: len(values)])
        found[name, len(next(iter(arrays.values())))] += 1
    assert found == {(name, size): 1 for name in reference.source.signatures for size in OPTIONS.batch_sizes}


def test_a_file_that_is_there_stays(reference: Reference, tmp_path: Path) -> None:
    (tmp_path / WARMUP_FILE).parent.mkdir()
    (tmp_path / WARMUP_FILE).write_bytes(b"theirs")
    assert write_warmup(reference, tmp_path, model="toy") == 0
    assert (tmp_path / WARMUP_FILE).read_bytes() == b"theirs"


def test_large_requests_are_left_out(reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RECORD_BYTES", 2000)
    count = write_warmup(reference, tmp_path, model="toy")
    assert 0 < count == len(read(tmp_path)) < 3 * len(OPTIONS.batch_sizes)


def test_few_examples(reference: Reference, tmp_path: Path) -> None:
    few = {name: {key: values[:3] for key, values in each.items()} for name, each in reference.data.inputs.items()}
    write_warmup(replace(reference, data=replace(reference.data, inputs=few)), tmp_path, model="toy")
    sizes = {len(tf.make_ndarray(next(iter(log.predict_log.request.inputs.values())))) for log in read(tmp_path)}
    assert sizes == {1, 3}


def test_a_folder_that_cannot_be_written(reference: Reference, tmp_path: Path) -> None:
    (tmp_path / "assets.extra").write_text("no folder")
    with pytest.raises(PublishError, match="Cannot write .*tf_serving_warmup_requests"):
        write_warmup(reference, tmp_path, model="toy")


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    report: ExportReport = publish_examples(tmp_path_factory.mktemp("repository") / "examples")
    return report


def test_examples_go_into_the_logs_of_their_methods(examples: ExportReport) -> None:
    kinds = Counter(log.WhichOneof("log_type") for log in read(examples.version.path))
    each = len(examples.manifest.formats["onnx"].verify.batch_sizes)
    assert kinds == {"predict_log": each, "classify_log": each, "regress_log": each}
    assert any(entry.path == WARMUP_FILE.as_posix() for entry in examples.manifest.files)
    log = next(log for log in read(examples.version.path) if log.HasField("regress_log"))
    assert "x" in log.regress_log.request.input.example_list.examples[0].features.feature


@pytest.mark.parametrize("runtime", ["onnxruntime", "litert", "tensorflow"])
def test_our_server_replays_it(examples: ExportReport, runtime: Runtime) -> None:
    servable = load_servable("examples", 1, examples.version.path, LoadOptions(runtime=runtime))
    metrics = Metrics()
    try:
        warm_up(servable, iterations=1, metrics=metrics)
    finally:
        servable.close()
    count = 3 * len(examples.manifest.formats["onnx"].verify.batch_sizes)
    (line,) = [line for line in page_of(metrics).splitlines() if "model_warmup_records_read{" in line]
    assert 'status="success"' in line and line.endswith(f" {count}")
