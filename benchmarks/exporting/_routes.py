"""The two ways to an artefact: this package, and the converters in a line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.exporting._source import by_name, function_of, module_function
from benchmarks.zoo import Kind
from modelyard.export import ExportOptions, Format, export

FORMATS: tuple[Format, ...] = ("saved_model", "onnx", "tflite")
ROUTES = ("ours", "plain")
EXAMPLES = 40


def make(kind: Kind, model: Any, route: str, form: Format, folder: Path, *, isolate: bool) -> dict[str, Any]:
    """Makes an artefact.

    Args:
        kind: The kind of model.
        model: The model.
        route: One of :data:`ROUTES`.
        form: The format.
        folder: Where to write.
        isolate: Converters of ours work in one more process: it takes seconds to start, and here is one already.

    Returns:
        What :func:`benchmarks.exporting._judge.judge` needs to load it.
    """
    return _ours(kind, model, form, folder, isolate) if route == "ours" else _PLAIN[form](kind, model, folder)


def _ours(kind: Kind, model: Any, form: Format, folder: Path, isolate: bool) -> dict[str, Any]:
    known = {each.name for each in dataclasses.fields(ExportOptions)}
    wanted = {**kind.options, **({"stochastic": kind.stochastic} if kind.stochastic else {})}
    options = ExportOptions(
        formats=(form,), min_examples=16, latency_calls=10, measure_seconds=0.2, runtimes=(), isolate=isolate,
        **{name: value for name, value in wanted.items() if name in known},
    )  # fmt: skip
    given: Any = model
    if kind.suffix:
        given = folder / f"model{kind.suffix}"
        model.save(given)
    report = export(
        given,
        folder / "repository" / "model",
        data=_examples(kind),
        signatures=kind.signatures or None,
        options=options,
    )
    version = Path(str(report.version.path))
    signature = report.manifest.signatures["serving_default"]
    manifest = json.loads((version / "manifest.json").read_text("utf-8"))
    described = manifest["formats"][form]
    return {
        "path": str(version),
        "inputs": [each.name for each in signature.inputs],
        "outputs": [each.name for each in signature.outputs],
        # What the manifest tells every server: other names of outputs, other dtypes of inputs.
        "renamed": described.get("renamed", {}).get("serving_default", {}),
        "cast": bool(described.get("computed")),
    }


def _examples(kind: Kind) -> Any:
    rng = np.random.default_rng(0)
    if kind.batch:
        return kind.sample(rng, EXAMPLES)
    # An example is a call.
    calls = [by_name(kind.sample(rng, 4)) for _ in range(EXAMPLES)]
    listed = {name: [call[name] for call in calls] for name in calls[0]}
    return listed[""] if list(listed) == [""] else listed


def _plain(ways: Sequence[Callable[[], Any]]) -> None:
    """The first way that works; the error of the first where none does."""
    first: Exception | None = None
    for way in ways:
        try:
            way()
        # Whatever a converter raises: people try the next line of its documentation.
        except Exception as exc:
            first = first or exc
        else:
            return
    if first is not None:
        raise first


def _plain_saved_model(kind: Kind, model: Any, folder: Path) -> dict[str, Any]:
    path = str(folder / "plain")
    function, specs = function_of(kind, model)
    if isinstance(model, keras.Model):
        _plain([
            lambda: model.export(path, verbose=False),
            lambda: tf.saved_model.save(model, path, signatures=_flat(function, specs)),
        ])  # fmt: skip
    elif isinstance(model, Path):
        loaded = tf.saved_model.load(str(model))
        tf.saved_model.save(loaded, path, signatures=loaded.signatures["serving_default"])
    else:
        tf.saved_model.save(model, path, signatures=module_function(model))
    return {"path": path, "order": [spec.name for spec in specs]}


def _plain_onnx(kind: Kind, model: Any, folder: Path) -> dict[str, Any]:
    import tf2onnx

    path = str(folder / "plain.onnx")
    function, specs = function_of(kind, model)
    ways: list[Callable[[], Any]] = [
        lambda: tf2onnx.convert.from_function(
            _flat(function, specs), input_signature=specs, opset=18, output_path=path
        ),
    ]  # fmt: skip
    if isinstance(model, keras.Model):
        ways.insert(0, lambda: model.export(path, format="onnx", verbose=False, opset_version=18))
    _plain([partial(_with_session, way, path) for way in ways])
    return {"path": path, "order": [spec.name for spec in specs]}


def _with_session(convert: Callable[[], Any], path: str) -> None:
    """Converts, and sees whether it loads: who sees that it does not tries the other way."""
    import onnxruntime

    convert()
    onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def _plain_tflite(kind: Kind, model: Any, folder: Path) -> dict[str, Any]:
    function, specs = function_of(kind, model)
    lite = tf.lite.TFLiteConverter
    if isinstance(model, Path):
        makers = [lambda: lite.from_saved_model(str(model), signature_keys=["serving_default"])]
    else:
        makers = [lambda: lite.from_concrete_functions([_flat(function, specs).get_concrete_function()], model)]
        if isinstance(model, keras.Model):
            makers.insert(0, lambda: lite.from_keras_model(model))
    target = folder / "plain.tflite"
    _plain([lambda maker=maker: target.write_bytes(maker().convert()) for maker in makers])  # type: ignore[misc]
    return {"path": str(target), "order": [spec.name for spec in specs]}


def _flat(function: Any, specs: list[Any]) -> Any:
    return tf.function(lambda *tensors: function(*tensors), input_signature=specs)


_PLAIN: dict[str, Callable[[Kind, Any, Path], dict[str, Any]]] = {
    "saved_model": _plain_saved_model,
    "onnx": _plain_onnx,
    "tflite": _plain_tflite,
}
