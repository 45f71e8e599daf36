"""Warm-up: recorded requests are replayed on a servable before it becomes available.

The file is TensorFlow Serving's: ``assets.extra/tf_serving_warmup_requests`` in the version directory, a TFRecord file
of ``PredictionLog`` messages. Model names and versions in the records are ignored, signatures are used.
"""

from __future__ import annotations

import logging
import time

import google_crc32c
from google.protobuf.message import DecodeError

from modelyard.artifact import CLASSIFY_METHOD, REGRESS_METHOD, WARMUP_FILE
from modelyard.errors import InvalidRequestError, ModelyardError, UnsupportedError
from modelyard.serving.metrics import Metrics
from modelyard.serving.prediction import _messages
from modelyard.serving.prediction._inference import InferenceTask, infer
from modelyard.serving.requests import check_output_filter
from modelyard.serving.servables import Servable
from modelyard.wire import read_records, serving_pb2

_LOG = logging.getLogger("modelyard.serving")

MAX_RECORDS = 1000


def warm_up(servable: Servable, *, iterations: int, metrics: Metrics) -> None:
    """Replays the records of a servable's version directory, if it has some.

    Records for signatures with state are left out: they would change it.
    """
    path = servable.path / WARMUP_FILE
    if not path.is_file():
        return
    labels = {"model_path": str(servable.path)}
    started = time.perf_counter()
    count, status = 0, "fail"
    try:
        for count, data in enumerate(read_records(path, checksum=google_crc32c.value), start=1):
            if count > MAX_RECORDS:
                raise InvalidRequestError(
                    f"Number of warmup records exceeds the maximum ({MAX_RECORDS}) at {path}; keep the first ones."
                )
            for _ in range(iterations):
                _replay(servable, data, f"record {count} of {path}")
        status = "success"
    finally:
        microseconds = (time.perf_counter() - started) * 1e6
        metrics.observe(":tensorflow:serving:model_warmup_latency", {**labels, "status": status}, microseconds)
        metrics.count(":tensorflow:serving:model_warmup_records_read", {**labels, "status": status}, count)
    _LOG.info(
        "model %s version %d: replayed %d warm-up records in %.2f s",
        servable.name, servable.version, count, microseconds / 1e6,
    )  # fmt: skip


def _replay(servable: Servable, data: bytes, place: str) -> None:
    try:
        log = serving_pb2.PredictionLog.FromString(data)
    except DecodeError as exc:
        raise InvalidRequestError(f"Failed to parse {place}: it is no PredictionLog. ({exc})") from exc
    try:
        if log.WhichOneof("log_type") == "predict_log":
            # TensorFlow Serving takes records without one: the default signature is meant.
            log.predict_log.request.model_spec.SetInParent()
            request = _messages.predict_request(log.predict_log.request)
            signature = servable.signature(request.spec.signature_name)
            if signature.stateful:
                return
            outputs = check_output_filter(signature, request.output_filter)
            servable.run(signature, request.inputs(signature), outputs)
            return
        tasks, examples = _tasks(log, place)
        for task in tasks:
            if servable.signature(task.spec.signature_name).stateful:
                continue
            infer(servable, task, examples)
    except UnsupportedError:
        raise
    except ModelyardError as exc:
        raise InvalidRequestError(f"The model refuses {place}: {exc.message}") from exc


def _tasks(log: serving_pb2.PredictionLog, place: str) -> tuple[list[InferenceTask], list[bytes]]:
    kind = log.WhichOneof("log_type")
    if kind == "multi_inference_log":
        multi = log.multi_inference_log.request
        tasks = [
            InferenceTask(spec=_messages.spec_of(item.model_spec), method=item.method_name) for item in multi.tasks
        ]
        return tasks, _messages.examples_of(multi.input)
    if kind == "classify_log":
        classify = log.classify_log.request
        task = InferenceTask(spec=_messages.spec_of(classify.model_spec), method=CLASSIFY_METHOD)
        return [task], _messages.examples_of(classify.input)
    if kind == "regress_log":
        regress = log.regress_log.request
        task = InferenceTask(spec=_messages.spec_of(regress.model_spec), method=REGRESS_METHOD)
        return [task], _messages.examples_of(regress.input)
    raise UnsupportedError(f"Unsupported log_type for warmup in {place}; expected a unary prediction log.")
