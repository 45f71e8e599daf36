"""What runtimes make of a program, beside what TensorFlow does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.programs.programs import EXAMPLES, INPUTS, Arrays, Program, examples
from modelyard.artifact import SignatureFunction, TensorSpec
from modelyard.errors import ConversionError, LoadError, ModelyardError
from modelyard.export import TracedModel, trace
from modelyard.export.formats import export_onnx, export_tflite
from modelyard.serving.config import LoadOptions
from modelyard.serving.servables import load_servable

Runtime = Literal["onnxruntime", "LiteRT", "OpenVINO, ONNX", "OpenVINO, SavedModel"]
RUNTIMES: Mapping[Runtime, Literal["onnxruntime", "litert", "openvino"]] = {
    "onnxruntime": "onnxruntime", "LiteRT": "litert", "OpenVINO, ONNX": "openvino", "OpenVINO, SavedModel": "openvino",
}  # fmt: skip
#: Part of an output's largest number that is its least scale; of a number; and of nothing.
_FLOOR, _RELATIVE, _ABSOLUTE = 1e-2, 1e-3, 1e-5
#: A relative change on the way, by which outputs tell how far rounding goes, and how often that is asked.
_NUDGE, _TIMES = 2e-6, 3


class Wrong(Exception):
    """A runtime answers otherwise than TensorFlow; the text says how."""


class Expected:
    """What TensorFlow answers to one batch, and how much of that rounding decides."""

    def __init__(self, program: Program, kind: str) -> None:
        self.inputs: Arrays = examples(program.inputs, kind, program.seed)
        self.values = _computed(program, 0.0, 0, self.inputs)
        near = [_computed(program, _NUDGE, seed, self.inputs) for seed in range(_TIMES)]
        self.spread = {name: _spread(value, [other[name] for other in near]) for name, value in self.values.items()}

    def compare(self, name: str, found: npt.NDArray[Any]) -> str:
        """What is wrong with an output; nothing where rounding alone decides what it is."""
        value, spread = self.values[name], self.spread[name]
        if spread is None:
            return ""
        if found.dtype != value.dtype or found.shape != value.shape:
            return f"{found.dtype}{list(found.shape)}, where TensorFlow has {value.dtype}{list(value.shape)}"
        if value.dtype.kind == "f":
            scale = np.maximum(np.abs(value), np.abs(value).max(initial=0) * _FLOOR)
            right = np.abs(found - value) <= _RELATIVE * scale + _ABSOLUTE + spread
        else:
            right = found == value
        if right.all():
            return ""
        return f"{found[~right][:4]}, where TensorFlow has {value[~right][:4]}"


def _computed(program: Program, by: float, seed: int, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
    tensors = {name: tf.constant(array) for name, array in inputs.items()}
    return {name: np.asarray(value) for name, value in program.nudged(by, seed, tensors).items()}


def _spread(value: npt.NDArray[Any], near: Sequence[npt.NDArray[Any]]) -> float | None:
    """By how much rounding moves an output; None where it decides more than that."""
    if any(other.shape != value.shape for other in near):
        return None
    if value.dtype.kind != "f":
        return 0.0 if all(np.array_equal(other, value) for other in near) else None
    if not all(np.isfinite(each).all() for each in (value, *near)):
        return None
    return max(3 * float(np.abs(other - value).max(initial=0)) for other in near)


def expected(program: Program) -> list[Expected]:
    """For each kind of examples that TensorFlow can compute."""
    found = []
    for kind in EXAMPLES:
        try:
            found.append(Expected(program, kind))
        except (tf.errors.OpError, ValueError):
            continue
    return found


def traced(program: Program) -> TracedModel:
    """The program as the exporter takes it.

    Raises:
        ConversionError: TensorFlow cannot trace it for any number of rows.
    """
    specs = tuple(TensorSpec(name=name, dtype=INPUTS[name][0], shape=(-1, *INPUTS[name][1])) for name in program.inputs)
    return trace(program.module, {"serving_default": SignatureFunction(inputs=specs, function=program.compute)})


def run(program: Program, source: TracedModel, runtime: Runtime, batches: Sequence[Expected]) -> str:
    """Exports a program, and has a runtime compute it.

    Returns:
        Why it was refused, or nothing where all outputs are right.

    Raises:
        Wrong: They are not.
    """
    try:
        try:
            _check(program, runtime, batches, partial(_write, program, source, runtime))
        except Wrong:
            if runtime not in ("onnxruntime", "OpenVINO, ONNX"):
                raise
            # As the exporter does where verification fails.
            _check(program, runtime, batches, partial(export_onnx, source, simplify=False))
    except (ConversionError, LoadError) as exc:
        return exc.message
    return ""


def _write(program: Program, source: TracedModel, runtime: Runtime, folder: Path) -> None:
    if runtime == "LiteRT":
        export_tflite(source, folder)
    elif runtime == "OpenVINO, SavedModel":
        module = program.module
        specs = [tf.TensorSpec([None, *INPUTS[name][1]], INPUTS[name][0], name=name) for name in program.inputs]
        module.compute = tf.function(
            lambda *tensors: program.compute(**dict(zip(program.inputs, tensors, strict=True))), input_signature=specs
        )
        tf.saved_model.save(module, str(folder), signatures={"serving_default": module.compute})
    else:
        export_onnx(source, folder)


def _check(program: Program, runtime: Runtime, batches: Sequence[Expected], write: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        with _answering(Path(folder), RUNTIMES[runtime]) as answer:
            for batch in batches:
                try:
                    found = answer(batch.inputs, program.outputs)
                except ModelyardError as exc:
                    raise Wrong(f"{program}: {runtime} refuses what TensorFlow computes: {exc.message}") from exc
                for name, value in found.items():
                    if problem := batch.compare(name, value):
                        raise Wrong(f"{program}: {runtime} has {name} = {problem}")


@contextmanager
def _answering(
    folder: Path, runtime: Literal["onnxruntime", "litert", "openvino"]
) -> Iterator[Callable[[Arrays, Sequence[str]], Mapping[str, Any]]]:
    """A version without a manifest, as a server loads it."""
    servable = load_servable("program", 1, folder, LoadOptions(runtime=runtime))
    signature = servable.signature("serving_default")
    names = [spec.name for spec in signature.inputs]
    try:
        yield lambda inputs, outputs: servable.run(signature, {name: inputs[name] for name in names}, outputs)
    finally:
        servable.backend.close()
