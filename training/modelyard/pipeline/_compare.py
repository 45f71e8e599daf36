"""The same requests through every format and both protocols."""

from __future__ import annotations

import itertools
import statistics
import timeit
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

    ``p50_us`` is the median time of a call with one example, client included, in microseconds; ``agreement`` the share
    of examples, 0 to 1, with the trained model's class; ``encoded_labels`` are those of examples sent as encoded files.
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
    """Serves a version in each of its formats and calls it over both protocols: one row for each pair.

    ``examples`` are inputs ``image``, float32 ``[N, ...]``; ``expected`` the trained model's classes, int64 ``[N]``;
    ``encoded`` image files of the first examples. ``calls`` are timed for each row.
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
    indices = itertools.cycle(range(size))
    times = timeit.repeat(lambda: call(next(indices)), number=1, repeat=_WARM_UP_CALLS + calls)
    return statistics.median(times[_WARM_UP_CALLS:]) * 1e6
