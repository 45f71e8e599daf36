"""The runtimes that exported files are reloaded in, behind one small interface.

Each runs on one thread where it can be told so and nobody asks for more: a
figure that is compared with another one must not depend on how many cores were
free. Sessions have the settings that the server gives them, so that what is
verified and measured here is what is served.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import (
    PREDICT_METHOD,
    ExampleDecode,
    Signature,
    TensorSpec,
    call_tflite,
    decode_examples,
    decode_image,
    format_key,
    format_path,
    onnx_files,
    openvino_core,
    read_tflite,
    tflite_has_state,
    tflite_signatures,
)
from modelyard.errors import ExportError, ImageDecodeError, InvalidInputError, ModelyardError, VerificationError
from modelyard.export.formats import gist
from modelyard.export.sources import restored
from modelyard.wire import dtype_by_numpy

Arrays = Mapping[str, npt.NDArray[Any]]


class Runtime(Protocol):
    """A reloaded format.

    Attributes:
        name: ``tensorflow``, ``onnxruntime``, ``litert`` or ``openvino``.
        package: The distribution that it comes from.
        threads: Threads of one call.
        decodes: Whether its signatures take encoded inputs themselves.
        graphs: What the file itself says it holds, by graph name.
    """

    name: str
    package: str
    threads: int
    decodes: bool
    graphs: Mapping[str, Signature]

    def run(self, graph: str, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Computes one graph.

        Args:
            graph: A key of ``graphs``.
            inputs: By name.
        """


def load_runtime(
    format: str,
    directory: Path,
    *,
    precision: str = "float32",
    runtime: str | None = None,
    threads: int = 1,
    graphs: Iterable[str] | None = None,
) -> Runtime:
    """Reloads one format, or a variant of it, from a version directory.

    Args:
        format: ``saved_model``, ``onnx`` or ``tflite``.
        directory: The version directory.
        precision: Of the variant.
        runtime: One of :func:`runtimes_of`; None for the first of them.
        threads: Of one call; TensorFlow has as many as the process gave it.
        graphs: Load these graphs only, where they are files of their own.

    Raises:
        VerificationError: The runtime cannot load what is there.
        ExportError: The format is unknown, or the runtime does not read it.
    """
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
    """The runtimes that a variant can be served with, the one that it is first verified in first.

    Args:
        format: ``saved_model``, ``onnx`` or ``tflite``.
        precision: Of the variant.
        among: Further runtimes have to be in here; None for those installed.

    Returns:
        Empty where the runtime that the variant needs cannot be had here.
    """
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
    """Answers one request as a server does: decode, preprocess, compute.

    Args:
        runtime: A reloaded format.
        name: Name of the signature.
        signature: Its description.
        inputs: By name, with the batch first; one example, of a signature that takes no batch.

    Raises:
        VerificationError: The runtime failed, or an encoded input is no image
            or not the Example that the signature describes.
    """
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
    """Computes one graph.

    Args:
        runtime: A reloaded format.
        graph: Name of the graph.
        inputs: By name, with the batch first.

    Raises:
        VerificationError: The runtime failed.
    """
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
                inputs=tuple(_tf_spec(key, spec) for key, spec in inputs[name].items()),
                outputs=tuple(_tf_spec(key, spec) for key, spec in function.structured_outputs.items()),
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
        import onnxruntime

        self.threads = threads
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # Its errors come as exceptions.
        options.log_severity_level = 4
        # The server turns an optimizer off that is wrong on other people's files. Here all are on: what is verified
        # so is right in anybody's onnxruntime, and as fast (MobileNetV2: 6.20 ms with it, 6.15 without).
        self._sessions = {
            name: onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            for name, path in files.items()
        }
        self._outputs = {name: [node.name for node in each.get_outputs()] for name, each in self._sessions.items()}
        self.graphs: Mapping[str, Signature] = {
            name: Signature(
                inputs=tuple(_onnx_spec(node) for node in session.get_inputs()),
                outputs=tuple(_onnx_spec(node) for node in session.get_outputs()),
                compute=name,
            )
            for name, session in self._sessions.items()
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
        self._content = path.read_bytes()
        self._load()

    @contextmanager
    def begun_anew(self) -> Iterator[None]:
        """Begins with the state of the file again on exit, where it has some."""
        yield
        if tflite_has_state(self._content):
            self._load()

    def _load(self) -> None:
        from ai_edge_litert.interpreter import Interpreter

        content = self._content
        self._interpreter = Interpreter(model_content=content, num_threads=self.threads)
        inputs = {each["name"]: each for each in self._interpreter.get_input_details()}
        outputs = {each["name"]: each for each in self._interpreter.get_output_details()}
        names = self._interpreter.get_signature_list()
        # Without a signature of its own a file is known by its tensors, as servers do.
        made = tflite_signatures(content, inputs=list(inputs), outputs=list(outputs), has_own=bool(names))
        self._runners = {} if made else {name: self._interpreter.get_signature_runner(name) for name in names}
        self._tensors = {
            name: (
                {alias: inputs[tensor] for alias, tensor in signature.inputs.items()},
                {alias: outputs[tensor] for alias, tensor in signature.outputs.items()},
            )
            for name, signature in made.items()
        }
        self.graphs: Mapping[str, Signature] = {
            name: _litert_signature(name, runner.get_input_details(), runner.get_output_details())
            for name, runner in self._runners.items()
        } | {name: _litert_signature(name, *self._tensors[name], each.method) for name, each in made.items()}

    def run(self, graph: str, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        if self._runners:
            answer = call_tflite(self._interpreter, self._runners[graph], inputs)
            return {name: _bytes(value) for name, value in answer.items()}
        feeds, fetches = self._tensors[graph]
        for name, detail in feeds.items():
            self._interpreter.resize_tensor_input(detail["index"], inputs[name].shape)
        self._interpreter.allocate_tensors()
        for name, detail in feeds.items():
            self._interpreter.set_tensor(detail["index"], inputs[name])
        self._interpreter.invoke()
        details = {each["index"]: each for each in self._interpreter.get_output_details()}
        values = {name: details[detail["index"]] for name, detail in fetches.items()}
        return {name: _bytes(read_tflite(self._interpreter, value)) for name, value in values.items()}


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
    """Restores on exit the variables of a runtime that has some.

    Args:
        runtime: A reloaded format.
    """
    if isinstance(runtime, _TensorFlow):
        return restored(runtime.functions.values())
    return runtime.begun_anew() if isinstance(runtime, _Litert) else nullcontext()


def runtime_versions(runtime: Runtime) -> dict[str, str]:
    """Name and version of a runtime, for reports.

    Args:
        runtime: A reloaded format.
    """
    return {runtime.package: version(runtime.package)}


def as_array(value: Any) -> npt.NDArray[Any]:
    """What a TensorFlow tensor holds, as an array.

    Args:
        value: Of its ``numpy()``: a string without a dimension comes as bytes.
    """
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)


def to_tensor(array: npt.NDArray[Any]) -> Any:
    """A TensorFlow tensor of an array; strings may be an object array of bytes.

    Args:
        array: Of any shape.
    """
    # NumPy's object arrays become string tensors only through a list.
    return tf.constant(array.tolist(), tf.string, array.shape) if array.dtype.kind in "OSU" else tf.constant(array)


def _tf_spec(name: str, spec: Any) -> TensorSpec:
    shape = None if spec.shape.rank is None else tuple(-1 if size is None else size for size in spec.shape.as_list())
    return TensorSpec(name=name, dtype=spec.dtype.name, shape=shape)


def _onnx_spec(node: Any) -> TensorSpec:
    kind = node.type.removeprefix("tensor(").removesuffix(")")
    dtype = {"float": "float32", "double": "float64"}.get(kind, kind)
    # An axis without a size is a name or None; an output of unknown rank has no shape at all.
    shape = None if node.shape is None else tuple(size if isinstance(size, int) else -1 for size in node.shape)
    return TensorSpec(name=node.name, dtype=dtype, shape=shape)


def _litert_signature(
    name: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], method: str = PREDICT_METHOD
) -> Signature:
    return Signature(
        inputs=tuple(_litert_spec(key, detail) for key, detail in inputs.items()),
        outputs=tuple(_litert_spec(key, detail) for key, detail in outputs.items()),
        compute=name,
        method=method,
    )


def _litert_spec(name: str, detail: Mapping[str, Any]) -> TensorSpec:
    kind = detail["dtype"]
    dtype = "string" if kind in (np.bytes_, np.str_, np.object_) else dtype_by_numpy(np.dtype(kind)).name
    # shape_signature is empty where every size is fixed.
    shape = detail["shape_signature"] if len(detail["shape_signature"]) else detail["shape"]
    return TensorSpec(name=name, dtype=dtype, shape=tuple(int(size) for size in shape))


def _text(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # onnxruntime's strings are Python text; undecodable bytes survive the round trip as surrogates.
    if array.dtype.kind not in "OS":
        return array
    result = np.empty(array.size, dtype=object)
    result[:] = [item.decode("utf-8", "surrogateescape") for item in array.ravel().tolist()]
    return result.reshape(array.shape)


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype.kind not in "OSU":
        return array
    flat = [item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item for item in array.ravel()]
    result = np.empty(len(flat), dtype=object)
    result[:] = flat
    return result.reshape(array.shape)
