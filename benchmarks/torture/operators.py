"""Models of one operator, and requests whose indices, sizes, axes, lengths and divisors are extremes.

Each answer is TensorFlow's or an error of the request, and a good request after it is answered as by TensorFlow: nobody
is answered with other memory, no process ends, and a request that fails costs later ones nothing. A runtime may answer
where TensorFlow refuses, if it is in the lists below and always answers the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.torture.cases import Result, Scratch, case, expect
from benchmarks.torture.operator_table import OPERATORS, Inputs, Operator
from modelyard.artifact import SignatureFunction, TensorSpec
from modelyard.clients import Client, connect
from modelyard.errors import ConversionError, ModelyardError, RequestError
from modelyard.export import trace
from modelyard.export.formats import export_onnx, export_tflite
from tests.support.admin import config_text, model_text
from tests.support.server import RunningServer, serve

#: A call that takes longer hangs.
TIMEOUT_S = 20.0
#: The short version has these.
SHORT = ("floor_div", "gather", "index", "reverse_sequence", "scatter_nd")
#: By runtime, what is answered where TensorFlow refuses: with nothing, zeros, or what is next.
LENIENT: Mapping[str, frozenset[str]] = {
    "LiteRT": frozenset(
        "bincount boolean_mask crop_image reduce_any reduce_max reduce_sum resize_nearest top_k".split()
    ),
    "onnxruntime": frozenset(
        """bincount boolean_mask concat crop_image dynamic_partition index linspace loop mirror_pad non_max_suppression
        one_hot pad range reshape scatter_nd segment_sum slice tensor_scatter_add tensor_scatter_update
        unsorted_segment_max unsorted_segment_sum""".split()
    ),
    "OpenVINO, ONNX": frozenset(
        """bincount boolean_mask cast crop_box crop_image dynamic_partition embedding gather index linspace mirror_pad
        one_hot pad range reshape resize resize_nearest scatter_nd segment_sum slice tensor_scatter_add
        tensor_scatter_update unsorted_segment_max unsorted_segment_sum""".split()
    ),
    "OpenVINO, SavedModel": frozenset(
        """boolean_mask cast dynamic_partition embedding gather gather_batch gather_nd linspace loop mirror_pad pad
        range resize resize_nearest scatter_nd segment_sum slice sparse_to_dense tensor_scatter_add
        tensor_scatter_update unsorted_segment_max unsorted_segment_sum""".split()
    ),
}
#: By runtime, what is answered otherwise than by TensorFlow: where sums of 32 bits overflow, or floats cancel.
DIFFERENT: Mapping[str, frozenset[str]] = {
    "LiteRT": frozenset(("truncate_div", "truncate_mod")),
    "onnxruntime": frozenset(("floor_div", "truncate_mod")),
    "OpenVINO, ONNX": frozenset(),
    "OpenVINO, SavedModel": frozenset(("crop_box",)),
}


@dataclass(kw_only=True)
class _Seen:
    """What came of all requests to one runtime."""

    right: int = 0
    refused: int = 0
    lenient: int = 0
    different: int = 0
    faults: list[str] = field(default_factory=list)


def _names(operator: Operator) -> list[str]:
    return [f"a{number}" for number in range(len(operator.specs))]


def _write(operator: Operator, folder: Path, kind: str) -> None:
    """The model in a format, as a version without a manifest."""
    names = _names(operator)
    specs = [tf.TensorSpec(spec.shape, spec.dtype, name=name) for spec, name in zip(operator.specs, names, strict=True)]

    def compute(*tensors: Any, **named: Any) -> dict[str, Any]:
        return {"y": operator.function(*tensors, *named.values())}

    if kind == "saved_model":
        module = tf.Module()
        module.compute = tf.function(compute, input_signature=specs)
        tf.saved_model.save(module, str(folder), signatures={"serving_default": module.compute})
        return
    inputs = tuple(
        TensorSpec(
            name=spec.name, dtype=spec.dtype.name, shape=tuple(-1 if size is None else size for size in spec.shape)
        )
        for spec in specs
    )
    folder.mkdir(parents=True)
    traced = trace(tf.Module(), {"serving_default": SignatureFunction(inputs=inputs, function=compute)})
    (export_onnx if kind == "onnx" else export_tflite)(traced, folder)


def _expected(operator: Operator, inputs: Inputs) -> Any:
    """TensorFlow's answer; None where it refuses."""
    try:
        return np.asarray(operator.function(*map(tf.constant, inputs)))
    except (tf.errors.OpError, ValueError):
        return None


def _same(answer: Any, expected: Any) -> bool:
    return answer.shape == expected.shape and np.allclose(answer, expected, rtol=1e-4, atol=1e-6, equal_nan=True)


def _ask(client: Client, name: str, inputs: Inputs) -> Any:
    named = dict(zip(_names(OPERATORS[name]), inputs, strict=True))
    return client.predict(name, named, timeout_s=TIMEOUT_S)["y"]


def _attack(server: RunningServer, client: Client, runtime: str, name: str, seen: _Seen) -> None:
    """All extremes of one operator; ends with the first that ends the server."""
    operator = OPERATORS[name]
    good = _expected(operator, operator.good)
    for inputs in operator.bad:
        expected, told = _expected(operator, inputs), f"{runtime}, {name} of {[each.tolist() for each in inputs[-2:]]}"
        try:
            answer = _ask(client, name, inputs)
        except RequestError:
            seen.refused += 1
        except ModelyardError as exc:
            seen.faults.append(f"{told}: {type(exc).__name__} {exc}")
        else:
            if expected is None:
                seen.lenient += 1
                if name not in LENIENT[runtime]:
                    seen.faults.append(f"{told}: {answer.ravel()[:9]}, where TensorFlow refuses")
                if not _same(_ask(client, name, inputs), answer):
                    seen.faults.append(f"{told}: answers differ, {answer.ravel()[:9]}")
            elif _same(answer, expected):
                seen.right += 1
            else:
                seen.different += 1
                if name not in DIFFERENT[runtime]:
                    seen.faults.append(f"{told}: {answer.ravel()[:9]}, where TensorFlow has {expected.ravel()[:9]}")
        if server.process.poll() is not None:
            seen.faults.append(f"{told}: the process ended with {server.process.returncode}")
            return
        after = _ask(client, name, operator.good)
        if not _same(after, good):
            seen.faults.append(f"{told}: the next request is answered {after.ravel()[:9]}, not {good.ravel()[:9]}")


def _convert(scratch: Scratch, kind: str) -> Iterator[str]:
    """The names of the models that the format has, written."""
    # It tells of each that it has not.
    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)
    for name in SHORT if scratch.short else OPERATORS:
        try:
            _write(OPERATORS[name], scratch.folder / kind / name / "1", kind)
        except ConversionError:
            continue
        yield name


def _loads(server: RunningServer, name: str) -> bool:
    """Whether the runtime can load the model, once that is known."""
    status = ""

    def known() -> bool:
        nonlocal status
        status = server.get(f"/v1/models/{name}")[1]
        return '"AVAILABLE"' in status or '"END"' in status

    server.wait_until(known, 120, f"{name} loaded or refused")
    return '"AVAILABLE"' in status


def _sweep(scratch: Scratch, runtime: str, kind: str, *flags: str) -> Result:
    names, loaded, seen = list(_convert(scratch, kind)), set[str](), _Seen()
    config = scratch.folder / "models.txt"
    config.write_text(config_text(*(model_text(name, scratch.folder / kind / name) for name in names)))
    all_flags = [f"--model_config_file={config}", "--max_num_load_retries=0", *flags]
    left = list(names)
    # Once more, with what is left, where one has ended the server.
    while left:
        with serve(None, model="", log_dir=scratch.folder, flags=all_flags, wait=False) as server:
            left = [name for name in left if _loads(server, name)]
            loaded |= set(left)
            with connect(f"grpc://{server.grpc_address}") as client:
                while left and server.process.poll() is None:
                    _attack(server, client, runtime, left.pop(0), seen)
    expect(not seen.faults, f"{len(seen.faults)} faults: {'; '.join(seen.faults[:5])}")
    expect(seen.right > 0 and seen.refused > 0, "it was asked nothing")
    return Result(
        inputs=seen.right + seen.refused + seen.lenient + seen.different,
        text=f"{len(loaded)} operators: {seen.right:,} answered as by TensorFlow, {seen.refused:,} refused, "
        f"{seen.lenient:,} answered where it refuses, {seen.different:,} otherwise",
    )


@case("operators", "numbers of requests in LiteRT", own=True, short=False)
def litert(scratch: Scratch) -> Result:
    """TFLite files."""
    return _sweep(scratch, "LiteRT", "tflite")


@case("operators", "numbers of requests in onnxruntime", own=True, short=False)
def onnxruntime(scratch: Scratch) -> Result:
    """ONNX files."""
    return _sweep(scratch, "onnxruntime", "onnx")


@case("operators", "numbers of requests in OpenVINO, ONNX", own=True, short=False)
def openvino_onnx(scratch: Scratch) -> Result:
    """ONNX files, by the other runtime."""
    return _sweep(scratch, "OpenVINO, ONNX", "onnx", "--runtime=openvino")


@case("operators", "numbers of requests in OpenVINO, SavedModel", own=True)
def openvino_saved_model(scratch: Scratch) -> Result:
    """SavedModels, which OpenVINO reads itself."""
    return _sweep(scratch, "OpenVINO, SavedModel", "saved_model", "--runtime=openvino")
