"""TFLite models in LiteRT."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import DEFAULT_SIGNATURE, Signature, TensorSpec
from modelyard.errors import InvalidInputError, LoadError, MissingDependencyError, PredictionError
from modelyard.serving._validation import shape_fits
from modelyard.serving.backends._base import Arrays
from modelyard.wire import dtype_by_numpy


class LitertBackend:
    """A pool of single-threaded interpreters: one interpreter serves one call at a time.

    Args:
        path: The ``.tflite`` file.
        threads: Threads of each interpreter.
        interpreters: Size of the pool.

    Raises:
        LoadError: LiteRT cannot read the file.
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
            models = [_Model(Interpreter(model_content=content, num_threads=threads)) for _ in range(interpreters)]
        except (OSError, ValueError, RuntimeError) as exc:
            raise LoadError(f"LiteRT cannot load {path}: {exc}") from exc
        self._signatures = models[0].signatures
        self._idle.extend(models)
        for _ in models:
            self._leaves.put(None)

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The signatures embedded in the file, or one made from its tensor names."""
        return self._signatures

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
                raise InvalidInputError(f"LiteRT cannot run signature {graph!r} on these inputs: {exc}") from exc
            except RuntimeError as exc:
                # A shape that an operation refuses looks like any other failure of it.
                fits = all(shape_fits(inputs[spec.name].shape, spec.shape) for spec in self._signatures[graph].inputs)
                kind = PredictionError if fits else InvalidInputError
                raise kind(f"LiteRT failed on signature {graph!r}: {exc}") from exc
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

    def __init__(self, interpreter: Any) -> None:
        self._interpreter = interpreter
        keys = interpreter.get_signature_list()
        self._runners = {key: interpreter.get_signature_runner(key) for key in keys}
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._plain: tuple[dict[str, int], dict[str, int]] | None = None
        if self._runners:
            self.signatures = {key: _signature(key, runner) for key, runner in self._runners.items()}
            return
        # No embedded signature: tensor names without their ":0" stand for the aliases, as upstream does.
        inputs = {_alias(detail["name"]): detail for detail in interpreter.get_input_details()}
        outputs = {_alias(detail["name"]): detail for detail in interpreter.get_output_details()}
        self._plain = (
            {name: detail["index"] for name, detail in inputs.items()},
            {name: detail["index"] for name, detail in outputs.items()},
        )
        self.signatures = {
            DEFAULT_SIGNATURE: Signature(
                inputs=tuple(_spec(name, detail) for name, detail in inputs.items()),
                outputs=tuple(_spec(name, detail) for name, detail in outputs.items()),
                compute=DEFAULT_SIGNATURE,
            )
        }

    def run(self, graph: str, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        if self._plain is None:
            # Arrays of the runner view the interpreter's memory: copy before the next call overwrites it.
            return {name: np.array(value) for name, value in self._runners[graph](**inputs).items()}
        feeds, fetches = self._plain
        for name, index in feeds.items():
            array = inputs[name]
            if self._shapes.get(index) != array.shape:
                self._interpreter.resize_tensor_input(index, array.shape)
                self._shapes[index] = array.shape
        self._interpreter.allocate_tensors()
        for name, index in feeds.items():
            self._interpreter.set_tensor(index, inputs[name])
        self._interpreter.invoke()
        return {name: self._interpreter.get_tensor(index) for name, index in fetches.items()}


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


def _alias(name: str) -> str:
    return name.removesuffix(":0")
