"""Warm-up: real requests that a server replays before a version takes traffic.

The file is TensorFlow Serving's own, read by its servers and by ours: a TFRecord
file of ``PredictionLog`` messages in ``assets.extra``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import CLASSIFY_METHOD, PREDICT_METHOD, WARMUP_FILE, Signature
from modelyard.errors import PublishError
from modelyard.export.runtimes import as_array
from modelyard.export.sources import Reference
from modelyard.wire import array_to_tensor, serving_pb2, tensorflow_pb2

#: Larger requests are left out: they would cost more at every start than a first slow answer.
MAX_RECORD_BYTES = 1 << 23


def write_warmup(reference: Reference, directory: Path, *, model: str) -> int:
    """Writes one request per signature and batch size, made of the verification data.

    None for a signature with state, which a replay would change.

    A directory that has the file already keeps it: the author of the SavedModel recorded what its users send.
    """
    path = directory / WARMUP_FILE
    if path.exists():
        return 0
    count = 0
    try:
        path.parent.mkdir(exist_ok=True)
        with tf.io.TFRecordWriter(str(path)) as writer:
            for log in _logs(reference, model):
                data = log.SerializeToString()
                if len(data) <= MAX_RECORD_BYTES:
                    writer.write(data)
                    count += 1
    except (OSError, tf.errors.OpError) as exc:
        raise PublishError(f"Cannot write {path}: {exc}") from exc
    return count


def _logs(reference: Reference, model: str) -> Iterator[serving_pb2.PredictionLog]:
    for name, signature in reference.source.signatures.items():
        inputs = reference.data.inputs[name]
        if signature.stateful:
            continue
        if signature.takes_calls:
            yield _log(name, signature, {key: as_array(values[0]) for key, values in inputs.items()}, model)
            continue
        count = len(next(iter(inputs.values())))
        # A size that the examples do not fill is recorded as the largest that they do.
        for size in sorted({min(size, count) for size in reference.outputs[name]}):
            yield _log(name, signature, {key: values[:size] for key, values in inputs.items()}, model)


def _log(
    name: str, signature: Signature, inputs: Mapping[str, npt.NDArray[Any]], model: str
) -> serving_pb2.PredictionLog:
    log = serving_pb2.PredictionLog()
    (first, *others) = signature.inputs
    if signature.method == PREDICT_METHOD or others or first.dtype != "string":
        predict = log.predict_log.request
        predict.model_spec.name, predict.model_spec.signature_name = model, name
        for key, values in inputs.items():
            predict.inputs[key].CopyFrom(array_to_tensor(values, as_content=True))
        return log
    request = log.classify_log.request if signature.method == CLASSIFY_METHOD else log.regress_log.request
    request.model_spec.name, request.model_spec.signature_name = model, name
    for message in inputs[first.name].tolist():
        request.input.example_list.examples.append(tensorflow_pb2.Example.FromString(message))
    return log
