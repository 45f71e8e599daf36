"""The same requests through every format and both protocols."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.clients import connect
from modelyard.pipeline._server import served

#: The server's runtime for each format of a version.
RUNTIMES: Mapping[str, str] = {"saved_model": "tensorflow", "onnx": "onnxruntime", "tflite": "litert"}
PROTOCOLS = ("grpc", "rest")
_WARM_UP_CALLS = 10
_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One format over one protocol.

    Attributes:
        format: Such as ``onnx``.
        runtime: What computed it, such as ``onnxruntime``.
        protocol: ``grpc`` or ``rest``.
        p50_us: Median time of one call with one example, client included, in microseconds.
        agreement: Share of examples, 0 to 1, with the trained model's class.
        labels: Label of each shown example.
        encoded_labels: Label of each shown example when it is sent as an encoded file.
    """

    format: str
    runtime: str
    protocol: str
    p50_us: float
    agreement: float
    labels: tuple[str, ...]
    encoded_labels: tuple[str, ...]


def compare(
    base_path: Path,
    *,
    model: str,
    formats: Sequence[str],
    examples: npt.NDArray[np.float32],
    expected: npt.NDArray[np.int64],
    encoded: Sequence[bytes],
    calls: int = 200,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Comparison, ...]:
    """Serves a version in each of its formats and asks each over both protocols.

    Args:
        base_path: The directory with the model's versions.
        model: Its name.
        formats: Formats that the version holds.
        examples: Inputs ``image`` of ``serving_default``, float32 ``[N, ...]``.
        expected: The trained model's class for each, int64 ``[N]``.
        encoded: Files of the first examples, for ``image_bytes``.
        calls: Timed calls for each format and protocol.
        progress: Called with what is done and the total.

    Returns:
        One row for each format and protocol.

    Raises:
        ServerError: A server did not start or did not answer.
        RequestError: A server refused a request.
    """
    rows: list[Comparison] = []
    total = len(formats) * len(PROTOCOLS)
    for name in formats:
        runtime = RUNTIMES[name]
        with served(base_path, model=model, flags=[f"--runtime={runtime}"]) as address:
            for protocol in PROTOCOLS:
                with connect(address.grpc if protocol == "grpc" else address.rest) as client:
                    rows.append(_ask(client, model, name, runtime, protocol, examples, expected, encoded, calls))
                progress(len(rows), total)
    return tuple(rows)


def _ask(
    client: Any,
    model: str,
    name: str,
    runtime: str,
    protocol: str,
    examples: npt.NDArray[np.float32],
    expected: npt.NDArray[np.int64],
    encoded: Sequence[bytes],
    calls: int,
) -> Comparison:
    classes = [
        client.predict(model, {"image": examples[start : start + _BATCH]})["class_id"]
        for start in range(0, len(examples), _BATCH)
    ]
    shown = len(encoded)
    labels = client.predict(model, {"image": examples[:shown]})["label"]
    encoded_labels = client.predict(model, {"image_bytes": list(encoded)}, signature="image_bytes")["label"]
    return Comparison(
        format=name,
        runtime=runtime,
        protocol=protocol,
        p50_us=_p50_us(
            lambda index: client.predict(model, {"image": examples[index : index + 1]}), len(examples), calls
        ),
        agreement=float(np.mean(np.concatenate(classes) == expected)),
        labels=tuple(label.decode() for label in labels),
        encoded_labels=tuple(label.decode() for label in encoded_labels),
    )


def _p50_us(call: Callable[[int], Any], size: int, calls: int) -> float:
    for index in range(_WARM_UP_CALLS):
        call(index % size)
    times = []
    for index in range(calls):
        started = time.perf_counter()
        call(index % size)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6
