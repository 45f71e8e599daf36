"""The runtimes that exported files are reloaded in, behind one small interface.

Each runs on one thread where it can be told so and no more are asked for: a figure that is compared with another one
must not depend on how many cores were free. Sessions have the settings that the server gives them, so that what is
verified and measured here is what is served.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import (
    ExampleDecode,
    GraphAdapter,
    Signature,
    decode_examples,
    decode_image,
    format_key,
    format_path,
    onnx_files,
    renamed_outputs,
)
from modelyard.artifact.runtimes import (
    TfliteModel,
    disable_telemetry,
    onnx_options,
    onnx_signature,
    openvino_core,
    prepare_tflite,
    tflite_has_state,
)
from modelyard.errors import ExportError, ImageDecodeError, InvalidInputError, ModelyardError, VerificationError
from modelyard.export.formats import gist, widened_dtypes
from modelyard.export.sources import TracedModel, as_spec, graph_signature, restored
from modelyard.wire import object_array

Arrays = Mapping[str, npt.NDArray[Any]]


class Runtime(Protocol):
    """A reloaded format."""

    name: str
    #: The distribution that it comes from.
    package: str
    #: Threads of one call.
    threads: int
    #: Whether its signatures take encoded inputs themselves.
    decodes: bool
    #: What the file itself says it holds.
    graphs: Mapping[str, Signature]

    def run(self, graph: str, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Computes one graph."""


def load_runtime(
    format: str,
    directory: Path,
    *,
    precision: str = "float32",
    runtime: str | None = None,
    threads: int = 1,
    graphs: Iterable[str] | None = None,
) -> Runtime:
    """Reloads one format, or a variant of it, from a version directory."""
    if format not in _READERS:
        raise ExportError(f"Format {format!r} is unknown; expected one of {', '.join(_READERS)}.")
    runtime = runtime or runtimes_of(format, precision)[0]
    if runtime not in _READERS[format]:
        raise ExportError(f"{runtime} does not read the format {format}; {' and '.join(_READERS[format])} do.")
    path = directory / format_path(format, precision)
    try:
        if runtime == "tensorflow":
            return _TensorFlow(path)
        if runtime == "litert":
            return _Litert(path, threads=threads)
        chosen = None if graphs is None else frozenset(graphs)
        files = {graph: file for graph, file in onnx_files(path).items() if chosen is None or graph in chosen}
        if runtime == "openvino":
            from modelyard.export.runtimes._openvino import OpenVino

            return OpenVino(files, precision=precision, threads=threads)
        return _OnnxRuntime(files, threads=threads)
    except ModelyardError:
        raise
    # Four foreign runtimes with exceptions of their own: this is the boundary that maps them.
    except Exception as exc:
        raise VerificationError(
            f"Format {format_key(format, precision)}: {runtime} cannot load it from {directory}: {gist(exc)}."
        ) from exc


def runtimes_of(format: str, precision: str = "float32", *, among: Iterable[str] | None = None) -> tuple[str, ...]:
    """The runtimes that a variant can be served with, the one that it is first verified in first."""
    if precision == "bfloat16":
        return ("openvino",) if format == "onnx" and _has_bfloat16() else ()
    first, *others = _READERS[format]
    wanted = set(others) if among is None else set(among)
    return (first, *(each for each in others if each in wanted and find_spec(each) is not None))


def _has_bfloat16() -> bool:
    if find_spec("openvino") is None:
        return False
    return "BF16" in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def call_signature(runtime: Runtime, name: str, signature: Signature, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Answers one request as a server does: decode, preprocess, compute."""
    if signature.takes_calls:
        # One example is one call, which has no such dimension.
        answer = run_graph(runtime, signature.compute, {key: as_array(values[0]) for key, values in inputs.items()})
        return {key: values[np.newaxis] for key, values in answer.items()}
    if signature.decode is None or runtime.decodes:
        return run_graph(runtime, name if runtime.decodes else signature.compute, inputs)
    if isinstance(signature.decode, ExampleDecode):
        try:
            dense = decode_examples(inputs[signature.decode.input].tolist(), signature.decode)
        except InvalidInputError as exc:
            raise VerificationError(f"Signature {name!r} was given an example that does not fit: {exc}") from exc
        return run_graph(runtime, signature.compute, dense)
    preprocess = str(signature.preprocess)
    (pixels,) = runtime.graphs[preprocess].inputs
    examples = []
    for data in inputs[signature.decode.input]:
        try:
            image = decode_image(data, signature.decode.channels)
        except ImageDecodeError as exc:
            raise VerificationError(f"Signature {name!r} was given an example that is no image: {exc}") from exc
        examples.append(run_graph(runtime, preprocess, {pixels.name: image}))
    return run_graph(
        runtime, signature.compute, {key: np.stack([each[key] for each in examples]) for key in examples[0]}
    )


def run_graph(runtime: Runtime, graph: str, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Computes one graph."""
    try:
        return runtime.run(graph, inputs)
    # As in load_runtime.
    except Exception as exc:
        shapes = {name: list(value.shape) for name, value in inputs.items()}
        raise VerificationError(f"{runtime.name} failed on graph {graph!r} with inputs {shapes}: {gist(exc)}.") from exc


class _TensorFlow:
    name = "tensorflow"
    package = "tensorflow"
    decodes = True

    def __init__(self, path: Path) -> None:
        # The loaded object owns the variables that its signatures use: keep it.
        self._loaded = tf.saved_model.load(str(path))
        self.functions = dict(self._loaded.signatures)
        #: By name, what the signature calls its inputs: Python's parameters have other names where it must be.
        inputs = {
            name: dict(zip(function._arg_keywords, function.inputs, strict=False))
            for name, function in self.functions.items()
        }
        # 0 means that TensorFlow took every core; it cannot be changed once it runs.
        self.threads = tf.config.threading.get_intra_op_parallelism_threads() or usable_cores()
        self.graphs: Mapping[str, Signature] = {
            name: Signature(
                inputs=tuple(as_spec(key, spec) for key, spec in inputs[name].items()),
                outputs=tuple(as_spec(key, spec) for key, spec in function.structured_outputs.items()),
                compute=name,
            )
            for name, function in self.functions.items()
        }

    def run(self, graph: str, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        outputs = self.functions[graph](**{name: to_tensor(value) for name, value in inputs.items()})
        return {name: as_array(value.numpy()) for name, value in outputs.items()}


class _OnnxRuntime:
    name = "onnxruntime"
    package = "onnxruntime"
    decodes = False

    def __init__(self, files: Mapping[str, Path], *, threads: int) -> None:
        disable_telemetry()
        import onnxruntime

        self.threads = threads
        options = onnx_options(threads)
        # The server turns an optimizer off that is wrong on other people's files. Here all are on: what is verified
        # so is right in anybody's onnxruntime, and as fast (MobileNetV2: 6.20 ms with it, 6.15 without).
        self._sessions = {
            name: onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            for name, path in files.items()
        }
        self._outputs = {name: [node.name for node in each.get_outputs()] for name, each in self._sessions.items()}
        self.graphs: Mapping[str, Signature] = {
            name: onnx_signature(name, session, files[name]) for name, session in self._sessions.items()
        }

    def run(self, graph: str, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        feeds = {name: _text(value) for name, value in inputs.items()}
        values = self._sessions[graph].run(self._outputs[graph], feeds)
        return {name: _bytes(value) for name, value in zip(self._outputs[graph], values, strict=True)}


class _Litert:
    name = "litert"
    package = "ai-edge-litert"
    decodes = False

    def __init__(self, path: Path, *, threads: int) -> None:
        self.threads = threads
        self._content = prepare_tflite(path.read_bytes())
        self._load()

    @contextmanager
    def begun_anew(self) -> Iterator[None]:
        """Begins with the state of the file again on exit, where it has some."""
        yield
        if tflite_has_state(self._content):
            self._load()

    def _load(self) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self._model = TfliteModel(Interpreter(model_content=self._content, num_threads=self.threads), self._content)
        self.graphs = self._model.signatures

    def run(self, graph: str, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        return {name: _bytes(value) for name, value in self._model.run(graph, inputs).items()}


#: By format, what reads it.
_READERS: Mapping[str, tuple[str, ...]] = {
    "saved_model": ("tensorflow",),
    "onnx": ("onnxruntime", "openvino"),
    "tflite": ("litert",),
}


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def restored_state(runtime: Runtime) -> AbstractContextManager[None]:
    """Restores on exit the variables of a runtime that has some."""
    if isinstance(runtime, _TensorFlow):
        return restored(runtime.functions.values())
    return runtime.begun_anew() if isinstance(runtime, _Litert) else nullcontext()


def as_array(value: object) -> npt.NDArray[Any]:
    """What a TensorFlow tensor holds, as an array."""
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)


def to_tensor(array: npt.NDArray[Any]) -> tf.Tensor:
    """A TensorFlow tensor of an array; strings may be an object array of bytes."""
    # NumPy's object arrays become string tensors only through a list.
    return tf.constant(array.tolist(), tf.string, array.shape) if array.dtype.kind in "OSU" else tf.constant(array)


def _text(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # onnxruntime's strings are Python text; undecodable bytes survive the round trip as surrogates.
    if array.dtype.kind not in "OS":
        return array
    return object_array([item.decode("utf-8", "surrogateescape") for item in array.ravel().tolist()]).reshape(
        array.shape
    )


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype.kind not in "OSU":
        return array
    flat = [item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item for item in array.ravel()]
    return object_array(flat).reshape(array.shape)


def renamed_of(source: TracedModel, format: str) -> dict[str, dict[str, str]]:
    """By graph, the outputs that have other names in the files of a format."""
    if format != "onnx" or format in source.files:
        return {}
    found = {graph: renamed_outputs(graph_signature(source, graph)) for graph in source.graphs}
    return {graph: names for graph, names in found.items() if names}


def computed_of(source: TracedModel, format: str) -> dict[str, str]:
    """By dtype of the model, the one that the files of a format have in its place."""
    if format in source.files:
        return {}
    found = (widened_dtypes(function, format) for function in source.graphs.values())
    return {dtype: "float32" for dtypes in found for dtype in sorted(dtypes)}


def adapted(runtime: Runtime, source: TracedModel, format: str) -> Runtime:
    """A reloaded format with the names and dtypes of the signatures."""
    described = {graph: graph_signature(source, graph) for graph in source.graphs}
    return adapt(runtime, described, renamed_of(source, format), computed_of(source, format))


def adapt(
    runtime: Runtime,
    described: Mapping[str, Signature],
    renamed: Mapping[str, Mapping[str, str]],
    computed: Mapping[str, str],
) -> Runtime:
    """The same where the traced model is not at hand."""
    if not renamed and not computed:
        return runtime
    adapters = {
        name: GraphAdapter(described[name], graph, renamed=renamed.get(name, {}), computed=computed)
        for name, graph in runtime.graphs.items()
        if name in described
    }
    return _Adapted(runtime, adapters)


class _Adapted:
    def __init__(self, runtime: Runtime, adapters: Mapping[str, GraphAdapter]) -> None:
        self.name, self.package, self.threads = runtime.name, runtime.package, runtime.threads
        self.decodes = runtime.decodes
        self.graphs: Mapping[str, Signature] = {
            **runtime.graphs,
            **{name: each.signature for name, each in adapters.items()},
        }
        self._runtime, self._adapters = runtime, adapters

    def run(self, graph: str, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        adapter = self._adapters[graph]
        values = self._runtime.run(graph, adapter.feeds(inputs))
        names = [spec.name for spec in self.graphs[graph].outputs]
        return {name: adapter.answer(name, values[adapter.fetched(name)]) for name in names}
