"""TFLite models in LiteRT."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import Signature, TensorSpec, call_tflite, read_tflite, tflite_has_state, tflite_signatures
from modelyard.errors import InvalidInputError, LoadError, MissingDependencyError, PredictionError
from modelyard.serving.backends._base import Arrays
from modelyard.serving.requests import shape_fits, without_paths
from modelyard.wire import dtype_by_numpy

#: Names of tensors by the names that a signature gives them.
Names = Mapping[str, str]


class LitertBackend:
    """A pool of single-threaded interpreters: one interpreter serves one call at a time.

    Args:
        path: The ``.tflite`` file.
        threads: Threads of each interpreter.
        interpreters: Size of the pool.

    Raises:
        LoadError: LiteRT cannot read the file, or lacks an operation of it.
        MissingDependencyError: LiteRT is not installed.
    """

    name = "litert"
    # Inputs are resized to what comes, as upstream does.
    checks_shapes = False

    def __init__(self, path: Path, *, threads: int, interpreters: int) -> None:
        try:
            from ai_edge_litert.interpreter import Interpreter
        except ModuleNotFoundError as exc:
            if exc.name is None or exc.name.split(".")[0] != "ai_edge_litert":
                raise
            raise MissingDependencyError(
                package="ai-edge-litert", extra="serving", purpose="The litert backend"
            ) from exc
        self.computes_in_caller = threads == 1
        #: The one that was used last comes first: it has the shapes of the last inputs, and is in the cache.
        self._idle: list[_Model] = []
        #: As many as there are in the list.
        self._leaves: queue.SimpleQueue[None] = queue.SimpleQueue()
        try:
            content = path.read_bytes()
            # LiteRT checks what is in the file before anything else reads it.
            first = Interpreter(model_content=content, num_threads=threads)
            _check_operations(first, content)
            # Each interpreter has a state of its own.
            more = 0 if tflite_has_state(content) else interpreters - 1
            instances = [first, *(Interpreter(model_content=content, num_threads=threads) for _ in range(more))]
            models = [_Model(instance, content) for instance in instances]
        except LoadError as exc:
            raise LoadError(f"LiteRT cannot serve {path}: {exc.message}") from exc
        except (OSError, ValueError, RuntimeError) as exc:
            raise LoadError(f"LiteRT cannot load {path}: {exc}") from exc
        self._signatures, self._tensor_names = models[0].signatures, models[0].tensor_names
        self._idle.extend(models)
        for _ in models:
            self._leaves.put(None)

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The signatures embedded in the file, or one made from its tensor names."""
        return self._signatures

    @property
    def tensor_names(self) -> Mapping[str, tuple[Names, Names]]:
        """By signature, the file's own names of the tensors that are its inputs and its outputs."""
        return self._tensor_names

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Computes one batch.

        Args:
            graph: One of :attr:`signatures`.
            inputs: Arrays by input name.
            outputs: The outputs to return; LiteRT always computes all.

        Raises:
            InvalidInputError: LiteRT refuses a shape.
            PredictionError: LiteRT failed.
        """
        with self._model() as model:
            try:
                values = model.run(graph, inputs)
            except ValueError as exc:
                raise InvalidInputError(
                    f"LiteRT cannot run signature {graph!r} on these inputs: {without_paths(str(exc))}"
                ) from exc
            except RuntimeError as exc:
                # A shape that an operation refuses looks like any other failure of it.
                fits = all(shape_fits(inputs[spec.name].shape, spec.shape) for spec in self._signatures[graph].inputs)
                kind = PredictionError if fits else InvalidInputError
                raise kind(f"LiteRT failed on signature {graph!r}: {without_paths(str(exc))}") from exc
        return {name: values[name] for name in outputs}

    def close(self) -> None:
        """Frees the interpreters."""
        self._idle, self._leaves = [], queue.SimpleQueue()

    @contextmanager
    def _model(self) -> Iterator[_Model]:
        idle, leaves = self._idle, self._leaves
        leaves.get()
        model = idle.pop()
        try:
            yield model
        finally:
            idle.append(model)
            leaves.put(None)


class _Model:
    """One interpreter."""

    def __init__(self, interpreter: Any, content: bytes) -> None:
        self._interpreter = interpreter
        self._shapes: dict[int, tuple[int, ...]] = {}
        inputs = {detail["name"]: detail for detail in interpreter.get_input_details()}
        outputs = {detail["name"]: detail for detail in interpreter.get_output_details()}
        keys = interpreter.get_signature_list()
        made = tflite_signatures(content, inputs=list(inputs), outputs=list(outputs), has_own=bool(keys))
        if made:
            keys = ()
        self._runners = {key: interpreter.get_signature_runner(key) for key in keys}
        self._tensors: dict[str, tuple[dict[str, int], dict[str, int]]] = {}
        self.signatures = {key: _signature(key, runner) for key, runner in self._runners.items()}
        self.tensor_names: dict[str, tuple[Names, Names]] = {
            key: (
                {name: detail["name"] for name, detail in runner.get_input_details().items()},
                {name: detail["name"] for name, detail in runner.get_output_details().items()},
            )
            for key, runner in self._runners.items()
        }
        for key, signature in made.items():
            self.tensor_names[key] = (signature.inputs, signature.outputs)
            self._tensors[key] = (
                {alias: inputs[name]["index"] for alias, name in signature.inputs.items()},
                {alias: outputs[name]["index"] for alias, name in signature.outputs.items()},
            )
            self.signatures[key] = Signature(
                inputs=tuple(_spec(alias, inputs[name]) for alias, name in signature.inputs.items()),
                outputs=tuple(_spec(alias, outputs[name]) for alias, name in signature.outputs.items()),
                compute=key,
                method=signature.method,
            )

    def run(self, graph: str, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        if graph in self._runners:
            return call_tflite(self._interpreter, self._runners[graph], inputs)
        feeds, fetches = self._tensors[graph]
        for name, index in feeds.items():
            array = inputs[name]
            if self._shapes.get(index) != array.shape:
                self._interpreter.resize_tensor_input(index, array.shape)
                self._shapes[index] = array.shape
        self._interpreter.allocate_tensors()
        for name, index in feeds.items():
            self._interpreter.set_tensor(index, inputs[name])
        self._interpreter.invoke()
        details = {detail["index"]: detail for detail in self._interpreter.get_output_details()}
        return {name: read_tflite(self._interpreter, details[index]) for name, index in fetches.items()}


def _check_operations(interpreter: Any, content: bytes) -> None:
    """Refuses a file with operations that LiteRT does not have: every request to it would fail."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(content)
    codes = (model.OperatorCodes(index).CustomCode() for index in range(model.OperatorCodesLength()))
    custom = [code.decode() for code in codes if code]
    if not custom:
        return
    try:
        interpreter.allocate_tensors()
    except RuntimeError as exc:
        missing = [name for name in custom if name in str(exc)]
        if missing:
            raise LoadError(
                f"it needs the operation {', '.join(missing)}, which LiteRT does not have. Serve the SavedModel that "
                "the file was made of; or export that with modelyard export, which takes the parse of tf.Example out "
                "of the graph."
            ) from exc


def _signature(key: str, runner: Any) -> Signature:
    return Signature(
        inputs=tuple(_spec(name, detail) for name, detail in sorted(runner.get_input_details().items())),
        outputs=tuple(_spec(name, detail) for name, detail in sorted(runner.get_output_details().items())),
        compute=key,
    )


def _spec(name: str, detail: Mapping[str, Any]) -> TensorSpec:
    kind = detail["dtype"]
    dtype = "string" if kind in (np.bytes_, np.str_, np.object_) else dtype_by_numpy(np.dtype(kind)).name
    # shape_signature is empty where the shape is fixed (and for scalars, whose shape is empty too).
    shape = detail.get("shape_signature")
    shape = detail["shape"] if shape is None or len(shape) == 0 else shape
    return TensorSpec(name=name, dtype=dtype, shape=tuple(int(size) for size in shape))
