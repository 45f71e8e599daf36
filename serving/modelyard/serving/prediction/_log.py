"""The log of predictions: requests and their answers as TFRecord files of ``PredictionLog`` messages.

Such a file is a warm-up file, and the load test sends it again. No request
waits for the disk: what is faster than a thread can write is dropped, and counted.
"""

from __future__ import annotations

import io
import logging
import os
import queue
import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import google_crc32c

from modelyard.artifact import Signature
from modelyard.serving.config import PredictionLogConfig, PredictionLogLimits
from modelyard.serving.metrics import Metrics
from modelyard.serving.prediction._inference import Classification, InferenceTask, Method, Regression
from modelyard.serving.prediction._messages import (
    fill_classification,
    fill_multi_inference,
    fill_regression,
    fill_spec,
)
from modelyard.serving.requests import Arrays, Caller, ModelSpec, Prediction, PredictRequest, size_of
from modelyard.wire import array_to_tensor, frame_record, serving_pb2

_LOG = logging.getLogger("modelyard.serving")
_T = TypeVar("_T")

_COUNT = ":tensorflow:serving:request_log_count"
#: Of a message beside its tensors.
_MESSAGE_BYTES = 256


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """What is to be written, still as it was computed."""

    config: PredictionLogConfig
    spec: ModelSpec
    size: int
    fill: Callable[[serving_pb2.PredictionLog], None]


class PredictionLogs:
    """Writes what models log, on a thread of its own."""

    def __init__(self, limits: PredictionLogLimits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def recorded(
        self, config: PredictionLogConfig | None, request: PredictRequest, encode: Callable[[Prediction], _T]
    ) -> tuple[PredictRequest, Callable[[Prediction], _T]]:
        """Has a request logged when it is answered, where it is chosen.

        Returns both as the data plane should use them.
        """
        if config is None or not _is_chosen(config, request.caller):
            return request, encode
        found: dict[str, Arrays] = {}

        def read(signature: Signature) -> Arrays:
            found["inputs"] = request.inputs(signature)
            return found["inputs"]

        def write(prediction: Prediction) -> _T:
            answer = encode(prediction)
            self._add_predict(config, request, found["inputs"], prediction)
            return answer

        return replace(request, inputs=read), write

    def _add_predict(
        self, config: PredictionLogConfig, request: PredictRequest, inputs: Arrays, prediction: Prediction
    ) -> None:
        def fill(log: serving_pb2.PredictionLog) -> None:
            message = log.predict_log
            _fill_request_spec(message.request.model_spec, request.spec)
            message.request.output_filter.extend(request.output_filter)
            fill_spec(message.response.model_spec, prediction.spec)
            for tensors, arrays in (
                (message.request.inputs, inputs),
                (message.response.outputs, prediction.outputs),
            ):
                for name, array in arrays.items():
                    tensors[name].CopyFrom(array_to_tensor(array, as_content=True))

        size = size_of(inputs) + size_of(prediction.outputs)
        self._add(_Entry(config=config, spec=prediction.spec, size=size, fill=fill))

    def inferred(
        self,
        config: PredictionLogConfig | None,
        method: Method,
        tasks: Sequence[InferenceTask],
        examples: Sequence[bytes],
        answers: Sequence[Classification | Regression],
        caller: Caller | None,
    ) -> None:
        """Logs a call over examples that was answered, where it is chosen."""
        if config is None or not _is_chosen(config, caller):
            return

        def fill(log: serving_pb2.PredictionLog) -> None:
            _fill_inferred(log, method, tasks, answers)
            entry = getattr(log, str(log.WhichOneof("log_type")))
            for data in examples:
                entry.request.input.example_list.examples.add().ParseFromString(data)

        size = sum(map(len, examples))
        self._add(_Entry(config=config, spec=answers[0].spec, size=size, fill=fill))

    def _add(self, entry: _Entry) -> None:
        entry = replace(entry, size=entry.size + _MESSAGE_BYTES)
        with self._lock:
            # One that is larger than all that may wait is taken alone.
            fits = not self._waiting_bytes or self._waiting_bytes + entry.size <= self._limits.queue_bytes
            if fits and not self._closed:
                self._waiting_bytes += entry.size
                if self._thread is None:
                    self._thread = threading.Thread(target=self._write, name="modelyard-prediction-log", daemon=True)
                    self._thread.start()
                self._queue.put(entry)
                return
        self._count(entry, "RESOURCE_EXHAUSTED")

    def _count(self, entry: _Entry, status: str) -> None:
        self._metrics.count(_COUNT, {"model_name": entry.spec.name, "status_code": status})

    def _write(self) -> None:
        files: dict[Path, _File] = {}
        while True:
            ends = [file.ends_at for file in files.values() if file.ends_at is not None]
            try:
                entry = self._queue.get(timeout=max(0.0, min(ends) - time.monotonic()) if ends else None)
            except queue.Empty:
                for file in files.values():
                    file.end_if_old()
                continue
            if entry is None:
                break
            file = files.setdefault(entry.config.prefix, _File(entry.config.prefix, self._limits))
            self._count(entry, "OK" if file.add(entry) else "UNAVAILABLE")
            with self._lock:
                self._waiting_bytes -= entry.size
        for file in files.values():
            file.end()

    def close(self, timeout_s: float | None = None) -> None:
        """Writes what waits, and ends the files; nothing is logged any more.

        What is not written after ``timeout_s`` stays in a hidden file, and a warning says so.
        """
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            thread.join(timeout_s)
            if thread.is_alive():
                _LOG.warning(
                    "%d bytes of predictions were not logged within %g s, and their hidden files are not whole",
                    self._waiting_bytes, timeout_s,
                )  # fmt: skip


class _File:
    """The file of one prefix that is written now: hidden until it is whole."""

    def __init__(self, prefix: Path, limits: PredictionLogLimits) -> None:
        self._prefix = prefix
        self._limits = limits
        self._file: io.FileIO | None = None
        self._path = prefix
        self._bytes = self._records = 0
        self._failed = False
        #: When its time is over; None where there is none.
        self.ends_at: float | None = None

    def add(self, entry: _Entry) -> bool:
        """Writes a record, and says whether that went well."""
        try:
            self._append(_frame(entry))
        except OSError as exc:
            if not self._failed:
                _LOG.error("the log of predictions %s cannot be written: %s", self._path, exc)
            self._failed = True
            self._give_up()
            return False
        # One request that cannot be written must not end the log of all others.
        except Exception:
            _LOG.exception("a prediction of model %s cannot be logged", entry.spec.name)
            return False
        self._failed = False
        return True

    def _append(self, data: bytes) -> None:
        if self._file is None:
            # Two servers, or two models, may have the same prefix.
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            self._path = self._prefix.with_name(f"{self._prefix.name}-{stamp}-{secrets.token_hex(4)}.tfrecord")
            # Without a buffer: what is counted as written is on its way to the disk.
            self._file = self._hidden.open("xb", buffering=0)
            self._bytes = self._records = 0
            self.ends_at = time.monotonic() + self._limits.max_age_s
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._bytes += len(data)
        self._records += 1
        if self._bytes >= self._limits.max_bytes or self._records == self._limits.max_records:
            self._publish()

    @property
    def _hidden(self) -> Path:
        return self._path.with_name(f".{self._path.name}.partial")

    def _publish(self) -> None:
        file, self._file, self.ends_at = self._file, None, None
        if file is None:
            return
        with file:
            file.flush()
            os.fsync(file.fileno())
        self._hidden.rename(self._path)
        _LOG.info("the log of predictions %s is complete: %d records", self._path, self._records)

    def _give_up(self) -> None:
        """Ends a file that cannot be written on, with the records that are whole; one that has none goes."""
        file, self._file, self.ends_at = self._file, None, None
        if file is None:
            return
        try:
            with file:
                file.truncate(self._bytes)
            if self._records:
                self._hidden.rename(self._path)
            else:
                self._hidden.unlink()
        except OSError as exc:
            _LOG.error("the log of predictions %s cannot be completed: %s", self._path, exc)

    def end_if_old(self) -> None:
        if self.ends_at is not None and self.ends_at <= time.monotonic():
            self.end()

    def end(self) -> None:
        try:
            self._publish()
        except OSError as exc:
            _LOG.error("the log of predictions %s cannot be completed: %s", self._path, exc)


def _is_chosen(config: PredictionLogConfig, caller: Caller | None) -> bool:
    # The core has drawn already for those that it would have answered itself.
    drawn = None if caller is None else caller.logged
    return random.random() < config.rate if drawn is None else drawn


def _frame(entry: _Entry) -> bytes:
    log = serving_pb2.PredictionLog()
    fill_spec(log.log_metadata.model_spec, entry.spec)
    log.log_metadata.sampling_config.sampling_rate = entry.config.rate
    log.log_metadata.timestamp_secs = int(time.time())
    entry.fill(log)
    return frame_record(log.SerializeToString(), checksum=google_crc32c.value)


def _fill_request_spec(message: serving_pb2.ModelSpec, spec: ModelSpec) -> None:
    fill_spec(message, spec)
    if spec.label is not None:
        message.version_label = spec.label


def _fill_inferred(
    log: serving_pb2.PredictionLog,
    method: Method,
    tasks: Sequence[InferenceTask],
    answers: Sequence[Classification | Regression],
) -> None:
    answer = answers[0]
    if method == "MultiInference":
        for task in tasks:
            item = log.multi_inference_log.request.tasks.add(method_name=task.method)
            _fill_request_spec(item.model_spec, task.spec)
        fill_multi_inference(log.multi_inference_log.response, answers)
        return
    entry = log.classify_log if isinstance(answer, Classification) else log.regress_log
    _fill_request_spec(entry.request.model_spec, tasks[0].spec)
    fill_spec(entry.response.model_spec, answer.spec)
    if isinstance(answer, Classification):
        fill_classification(log.classify_log.response.result, answer)
    else:
        fill_regression(log.regress_log.response.result, answer)
