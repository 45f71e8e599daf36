"""The log of predictions where the disk is slow, or gone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from modelyard.serving.config import PredictionLogConfig, PredictionLogLimits
from modelyard.serving.metrics import Metrics
from modelyard.serving.prediction import PredictionLogs
from modelyard.serving.requests import Caller, ModelSpec, Prediction, PredictRequest
from modelyard.wire import read_records, serving_pb2

SPEC = ModelSpec(name="m", version=3, signature="serving_default")
INPUTS = {"x": np.zeros(10, np.float32)}


class Slow(dict[str, Any]):
    """Outputs that take until somebody lets go."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__(y=np.ones(10, np.float32))
        self.gate = gate

    def items(self) -> Any:
        assert self.gate.wait(30)
        return super().items()


def log(
    logs: PredictionLogs, config: PredictionLogConfig, outputs: dict[str, Any], *, caller: Caller | None = None
) -> str:
    request = PredictRequest(spec=SPEC, inputs=lambda _: INPUTS, caller=caller)
    request, encode = logs.recorded(config, request, lambda _: "answer")
    request.inputs(None)  # type: ignore[arg-type]
    return encode(Prediction(spec=SPEC, outputs=outputs))


def counts(metrics: Metrics) -> dict[str, float]:
    rows = metrics.snapshot()[":tensorflow:serving:request_log_count"]
    return {dict(labels)["status_code"]: count for labels, count in rows if isinstance(count, float | int)}


def written(folder: Path) -> Iterator[serving_pb2.PredictionLog]:
    for path in sorted(folder.iterdir()):
        yield from map(serving_pb2.PredictionLog.FromString, read_records(path))


def test_a_slow_disk_costs_records_and_no_request_s_time(tmp_path: Path) -> None:
    metrics, gate = Metrics(), threading.Event()
    logs = PredictionLogs(PredictionLogLimits(queue_bytes=1000), metrics)
    config = PredictionLogConfig(prefix=tmp_path / "a", rate=1.0)
    # 336 bytes each: while the first is written, another one may wait.
    for _ in range(10):
        assert log(logs, config, Slow(gate)) == "answer"
    assert counts(metrics) == {"RESOURCE_EXHAUSTED": 8}
    gate.set()
    logs.close()
    assert counts(metrics) == {"RESOURCE_EXHAUSTED": 8, "OK": 2}
    assert len(list(written(tmp_path))) == 2
    # Nothing is logged any more, and nobody fails.
    assert log(logs, config, Slow(gate)) == "answer"
    assert counts(metrics)["RESOURCE_EXHAUSTED"] == 9


def test_a_folder_that_is_gone_is_counted_until_it_is_back(tmp_path: Path) -> None:
    metrics = Metrics()
    logs = PredictionLogs(PredictionLogLimits(max_records=1), metrics)
    config = PredictionLogConfig(prefix=tmp_path / "later" / "a", rate=1.0)
    outputs = {"y": np.ones(10, np.float32)}
    assert log(logs, config, outputs) == log(logs, config, outputs) == "answer"
    for _ in range(1000):
        if counts(metrics) == {"UNAVAILABLE": 2}:
            break
        threading.Event().wait(0.01)
    (tmp_path / "later").mkdir()
    assert log(logs, config, outputs) == "answer"
    logs.close()
    assert counts(metrics) == {"UNAVAILABLE": 2, "OK": 1}
    (found,) = written(tmp_path / "later")
    assert found.predict_log.response.model_spec.version.value == 3


def test_what_cannot_be_written_ends_no_log(tmp_path: Path) -> None:
    metrics = Metrics()
    logs = PredictionLogs(PredictionLogLimits(), metrics)
    config = PredictionLogConfig(prefix=tmp_path / "a", rate=1.0)
    log(logs, config, {"y": np.zeros(1, "datetime64[s]")})
    log(logs, config, {"y": np.zeros(1, np.float32)})
    logs.close()
    assert counts(metrics) == {"UNAVAILABLE": 1, "OK": 1}


def test_what_the_core_chose_is_not_chosen_again(tmp_path: Path) -> None:
    metrics = Metrics()
    logs = PredictionLogs(PredictionLogLimits(), metrics)
    for logged, rate in ((True, 1e-12), (False, 1.0), (None, 1e-12), (None, 1.0)):
        config = PredictionLogConfig(prefix=tmp_path / "a", rate=rate)
        log_if_chosen = logs.recorded(
            config, PredictRequest(spec=SPEC, inputs=lambda _: INPUTS, caller=Caller(logged=logged)), lambda _: "answer"
        )
        log_if_chosen[0].inputs(None)  # type: ignore[arg-type]
        log_if_chosen[1](Prediction(spec=SPEC, outputs=INPUTS))
    logs.close()
    assert counts(metrics) == {"OK": 2}
