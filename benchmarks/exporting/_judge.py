"""Loads an artefact in its own runtime, with nothing of ours, and compares what it answers."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.exporting._calls import Array, Call

Run = Callable[[Call], dict[str, Array]]
#: Largest error as a share of the spread where values lie close together.
SHARE = 0.02
#: What the manifest may say that a graph has in place of a signature's floats.
_NUMPY = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
#: Up to so many outputs are tried in every order where they have no names.
ORDERS = 6


def judge(
    made: Mapping[str, Any], form: str, calls: Sequence[Call], *, stochastic: Sequence[str], tolerance: float
) -> str:
    """Compares an artefact with its source.

    Args:
        made: What made it says of it.
        form: Its format.
        calls: Inputs and right answers.
        stochastic: Outputs that are drawn at random.
        tolerance: Largest error allowed, see :class:`benchmarks.zoo.Kind`.

    Returns:
        What is wrong; empty where nothing is.
    """
    load = _LOADERS[form](made)
    renamed = {inside: name for name, inside in made.get("renamed", {}).items()}

    def run(call: Call) -> dict[str, Array]:
        return {renamed.get(name, name): each for name, each in load(call).items()}

    got = []
    for call in calls:
        answer = run(call)
        draws = [run(call) for _ in call.draws]
        got.append((answer, draws))
    names = list(got[0][0])
    if made.get("outputs"):
        names = [name for name in made["outputs"] if name in names] or names
        if len({_number(name)[0] for name in names}) == 1:
            names.sort(key=_number)
    count = len(calls[0].outputs.arrays)
    if len(names) != count:
        return f"{len(names)} outputs, the source has {count}"
    wanted = calls[0].outputs.names
    if wanted and set(wanted) == set(names):
        return _compare(wanted, calls, got, stochastic, tolerance)
    # Without names of their own, ours are in the source's order; of the plain ones, any order will do.
    orders = [tuple(names)]
    if not made.get("outputs") and count <= ORDERS:
        orders = list(itertools.permutations(names))
    if made.get("outputs") and wanted:
        return f"outputs are named {sorted(names)}, the source's {sorted(wanted)}"
    faults = [_compare(order, calls, got, stochastic, tolerance) for order in orders]
    return "" if "" in faults else faults[0]


def _compare(
    order: Sequence[str], calls: Sequence[Call], got: Sequence[Any], stochastic: Sequence[str], tolerance: float
) -> str:
    for index, name in enumerate(order):
        wanted = [call.outputs.arrays[index] for call in calls]
        if (calls[0].outputs.names[index] if calls[0].outputs.names else name) in stochastic:
            fault = next(
                filter(None, (
                    _compare_draws([each.arrays[index] for each in call.draws], [each[name] for each in draws])
                    for call, (_, draws) in zip(calls, got, strict=True)
                )), "",
            )  # fmt: skip
        else:
            fault = compare(wanted, [answer[name] for answer, _ in got], tolerance)
        if fault:
            return f"output {name!r} {fault}"
    return ""


def compare(wanted: Sequence[Array], got: Sequence[Array], tolerance: float) -> str:
    """What is wrong with one output in several calls; empty where nothing is."""
    for number, (want, have) in enumerate(zip(wanted, got, strict=True), 1):
        if want.shape != have.shape:
            return f"is {list(have.shape)} in call {number}, the source's {list(want.shape)}"
        if want.dtype.kind != have.dtype.kind and not {want.dtype.kind, have.dtype.kind} <= set("OSU"):
            return f"is {have.dtype}, the source's {want.dtype}"
        if want.dtype.kind in "OSU":
            if _texts(want) != _texts(have):
                return f"differs in call {number}: {_texts(have)[:3]}, the source's {_texts(want)[:3]}"
        elif want.dtype.kind in "iub" and not np.array_equal(want, have):
            return f"differs in call {number}: {have.ravel()[:4].tolist()}, the source's {want.ravel()[:4].tolist()}"
    if wanted[0].dtype.kind not in "fc" and wanted[0].dtype.name != "bfloat16":
        return ""
    everything = np.concatenate([each.ravel() for each in wanted]).astype(np.float64)
    theirs = np.concatenate([each.ravel() for each in got]).astype(np.float64)
    finite = np.isfinite(everything)
    if (
        not np.array_equal(everything[~finite], theirs[~finite], equal_nan=True)
        or not np.isfinite(theirs[finite]).all()
    ):
        return "is NaN or infinite where the source is not, or the other way round"
    if not finite.any():
        return ""
    values = everything[finite]
    spread, error = float(np.ptp(values)), float(np.max(np.abs(values - theirs[finite])))
    rounding = 64 * float(np.spacing(np.float32(np.abs(values).max())))
    allowed = min(tolerance * max(1.0, spread), max(max(SHARE, tolerance) * spread, rounding))
    return "" if error <= max(allowed, rounding) else f"is {error:.2g} off where the source spreads over {spread:.2g}"


def _compare_draws(wanted: Sequence[Array], got: Sequence[Array]) -> str:
    """Means and deviations of a random output: 100 draws tell a mean to a third of a deviation."""
    if wanted[0].shape != got[0].shape:
        return f"is {list(got[0].shape)}, the source's {list(wanted[0].shape)}"
    want, have = np.stack(wanted).astype(np.float64), np.stack(got).astype(np.float64)
    deviation = want.std(0)
    if np.any((deviation > 1e-6) & (have.std(0) == 0)):
        return "is not random any more"
    noise = deviation / np.sqrt(len(want)) + 1e-6
    if np.any(np.abs(want.mean(0) - have.mean(0)) > 7 * noise):
        return "has another mean"
    ratio = (have.std(0) + 1e-6) / (deviation + 1e-6)
    return "" if np.all((ratio > 0.6) & (ratio < 1.7)) else "has another deviation"


def _texts(array: Array) -> list[str]:
    return [each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in array.ravel()]


def _feed(names: Sequence[str], call: Call, order: Sequence[str]) -> dict[str, Array]:
    """Arrays by the artefact's names: the same ones, or in the order of the source's."""
    inputs = call.inputs
    if call.parsed and set(names) == set(call.parsed):
        return dict(call.parsed)
    if "" in inputs:
        (name,) = names
        return {name: inputs[""]}
    if set(names) == set(inputs):
        return dict(inputs)
    if len(names) != len(inputs):
        raise ValueError(f"The artefact has the inputs {list(names)}, the source {list(inputs)}.")
    return {name: inputs[mine] for name, mine in zip(names, order or list(inputs), strict=True)}


def _load_saved_model(made: Mapping[str, Any]) -> Run:
    import tensorflow as tf

    loaded = tf.saved_model.load(made["path"])
    signature = loaded.signatures["serving_default"]
    specs = signature.structured_input_signature[1]

    def run(call: Call, keep: Any = loaded) -> dict[str, Array]:
        # By the names that clients use, which the loaded function takes, too. It may call its arguments otherwise.
        feed = _feed(made.get("inputs") or list(specs), call, made.get("inputs", ()))
        tensors = {
            name: tf.constant(
                each.tolist() if each.dtype == object else each, specs[name].dtype if name in specs else None
            )
            for name, each in feed.items()
        }
        return {
            name: each.numpy() for name, each in sorted(signature(**tensors).items(), key=lambda pair: _number(pair[0]))
        }

    return run


def _number(name: str) -> tuple[str, int]:
    """``output_10`` behind ``output_9``."""
    head, _, tail = name.rpartition("_")
    return (head, int(tail)) if tail.isdigit() else (name, -1)


def _load_onnx(made: Mapping[str, Any]) -> Run:
    path = Path(made["path"])
    if path.is_dir():
        folder = path / "onnx"
        first, last = folder / "serving_default.preprocess.onnx", folder / "serving_default.onnx"
        paths = [first, last] if first.exists() else [last]
    else:
        paths = [path]
    sessions = [_session(each) for each in paths]

    def run(call: Call) -> dict[str, Array]:
        order = made.get("inputs") or made.get("order", ())
        passed: dict[str, Array] = {}
        for session in sessions:
            names = [each.name for each in session.get_inputs()]
            known = {**call.inputs, **passed}
            feed = {name: known[name] for name in names} if passed else _feed(names, call, order)
            types = {each.name: _NUMPY.get(each.type) for each in session.get_inputs()} if made.get("cast") else {}
            feed = {name: each.astype(types.get(name) or each.dtype) for name, each in feed.items()}
            answer = session.run(None, {name: _unicode(each) for name, each in feed.items()})
            passed = {out.name: _bytes(each) for out, each in zip(session.get_outputs(), answer, strict=True)}
        return passed

    return run


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if importlib.util.find_spec("onnxruntime_extensions") is not None:
        options.register_custom_ops_library(importlib.import_module("onnxruntime_extensions").get_library_path())
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _unicode(array: Array) -> Array:
    return np.vectorize(bytes.decode, otypes=[object])(array) if array.dtype == object and array.size else array


def _bytes(array: Any) -> Array:
    array = np.asarray(array)
    return np.vectorize(str.encode, otypes=[object])(array) if array.dtype.kind in "OU" and array.size else array


def _load_tflite(made: Mapping[str, Any]) -> Run:
    from ai_edge_litert.interpreter import Interpreter

    path = Path(made["path"])
    interpreter = Interpreter(model_path=str(path / "model.tflite" if path.is_dir() else path))
    run_signature = interpreter.get_signature_runner("serving_default")
    details = run_signature.get_input_details()

    def run(call: Call, keep: Any = interpreter) -> dict[str, Array]:
        feed = _feed(sorted(details, key=_number), call, made.get("inputs") or made.get("order", ()))
        if made.get("cast"):
            feed = {name: each.astype(details[name]["dtype"]) for name, each in feed.items()}
        answer = run_signature(**feed)
        # Copied: the interpreter writes the next answer into the same memory.
        return {name: np.array(answer[name]) for name in sorted(answer, key=_number)}

    return run


_LOADERS: dict[str, Callable[[Mapping[str, Any]], Run]] = {
    "saved_model": _load_saved_model, "onnx": _load_onnx, "tflite": _load_tflite,
}  # fmt: skip
