"""TFLite models in LiteRT."""

from __future__ import annotations

import queue
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from modelyard.artifact import Signature
from modelyard.artifact.runtimes import TfliteModel, prepare_tflite, tflite_has_state
from modelyard.errors import InvalidInputError, LoadError, PredictionError
from modelyard.serving.backends._base import Arrays
from modelyard.serving.backends._files import read_model
from modelyard.serving.requests import shape_fits, without_paths

if TYPE_CHECKING:
    from ai_edge_litert.interpreter import Interpreter

#: An interpreter keeps what its largest call took, many times its inputs: beyond so many bytes of them, and so many
#: seconds after the last such call, it is made anew.
_LARGE_BYTES, _LARGE_S = 4 << 20, 10.0
#: What LiteRT says of values that TensorFlow refuses as invalid arguments.
_INVALID = ("index out of bounds", "Division by 0")


class LitertBackend:
    """A pool of single-threaded interpreters: one interpreter serves one call at a time."""

    name = "litert"
    on_device = False
    few_shapes: frozenset[str] = frozenset()
    # The rows of inputs are as many as come, whatever the file says, as upstream has it.
    checks_shapes = False

    def __init__(self, path: Path, *, threads: int, interpreters: int) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self.computes_in_caller = threads == 1
        #: The one that was used last comes first: it has the shapes of the last inputs, and is in the cache.
        self._idle: list[_Model] = []
        #: As many as there are in the list.
        self._leaves: queue.SimpleQueue[None] = queue.SimpleQueue()
        content = read_model(path)
        try:
            # LiteRT checks what is in the file before anything else reads it.
            first = Interpreter(model_content=content, num_threads=threads)
            _check_operations(first, content)
            self._content = prepare_tflite(content)
            self._new = partial(Interpreter, model_content=self._content, num_threads=threads)
            if self._content is not content:
                first = self._new()
            # Each interpreter has a state of its own.
            self._has_state = tflite_has_state(self._content)
            more = 0 if self._has_state else interpreters - 1
            models = [_Model(each, self._content) for each in (first, *(self._new() for _ in range(more)))]
        except LoadError as exc:
            raise LoadError(f"LiteRT cannot serve {path}: {exc.message}") from exc
        except (ValueError, RuntimeError) as exc:
            raise LoadError(f"LiteRT cannot load {path}: {exc}") from exc
        self.signatures: Mapping[str, Signature] = models[0].signatures
        #: By signature, the file's own names of the tensors that are its inputs and its outputs.
        self.tensor_names: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = models[0].tensor_names
        self._idle.extend(models)
        for _ in models:
            self._leaves.put(None)

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        with self._model() as model:
            try:
                values = model.run(graph, inputs)
            except ValueError as exc:
                raise InvalidInputError(
                    f"LiteRT cannot run signature {graph!r} on these inputs: {without_paths(str(exc))}"
                ) from exc
            except RuntimeError as exc:
                # A shape that an operation refuses looks like any other failure of it.
                fits = all(shape_fits(inputs[spec.name].shape, spec.shape) for spec in self.signatures[graph].inputs)
                wrong = not fits or any(each in str(exc) for each in _INVALID)
                kind = InvalidInputError if wrong else PredictionError
                raise kind(f"LiteRT failed on signature {graph!r}: {without_paths(str(exc))}") from exc
        return {name: values[name] for name in outputs}

    def interrupt(self, threads: Collection[int] | None = None) -> bool:
        """The runtime cannot."""
        return False

    def close(self) -> None:
        self._idle, self._leaves = [], queue.SimpleQueue()

    @contextmanager
    def _model(self) -> Iterator[_Model]:
        idle, leaves = self._idle, self._leaves
        leaves.get()
        model = idle.pop()
        try:
            if model.large_since and time.monotonic() - model.large_since > _LARGE_S and not self._has_state:
                model = _Model(self._new(), self._content)
            yield model
        finally:
            idle.append(model)
            leaves.put(None)


class _Model(TfliteModel):
    """One interpreter; it knows when its last large call was: 0 where there was none."""

    large_since = 0.0

    def run(self, graph: str, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        if sum(array.nbytes for array in inputs.values()) > _LARGE_BYTES:
            self.large_since = time.monotonic()
        return super().run(graph, inputs)


def _check_operations(interpreter: Interpreter, content: bytes) -> None:
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
