"""A model by its place: opened where it is used, once in each worker."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import find_version, locate
from modelyard.clients import ClientOptions, connect
from modelyard.errors import ConfigurationError, InvalidInputError, SignatureNotFoundError
from modelyard.wire import as_wire_array, cast_unchanged

Arrays = Mapping[str, Any]
Outputs = dict[str, npt.NDArray[Any]]
_Spec = tuple[str, Sequence[int] | None]
#: Specs of the inputs, names of the outputs, and what computes.
_Opened = tuple[Mapping[str, _Spec], Sequence[str], Callable[[Arrays], Outputs]]


@dataclass(frozen=True)
class BatchModel:
    """A published model as a function from columns to columns.

    It is small, and pickled without the model: each process that calls it loads
    the model, or connects to the server, at its first call. Ray Data takes the class
    itself: ``dataset.map_batches(BatchModel, fn_constructor_args=["models/fashion"])``.

    Args:
        model: ``<repository>/<model>``, also in an object store, which every worker
            can read; with ``server`` the model's name there.
        server: URL of a server, such as ``grpc://host:8500``. None to compute in the process that calls. A server that
            is full says when to come again, and the client waits for that.
        version: Number of the version; None for the newest.
        signature: Which signature to call.
        outputs: Which outputs to compute; None or empty for all.
        keep: Columns of a batch to hand on beside the outputs.
        runtime: The runtime to compute in; None for the manifest's choice.
        threads: Threads of that runtime; None for the manifest's choice. One is right
            where an engine starts as many workers as there are cores.
        client: How to call the server.
    """

    model: str
    server: str | None = None
    version: int | None = None
    signature: str = "serving_default"
    outputs: Sequence[str] | None = None
    keep: Sequence[str] = ()
    runtime: str | None = None
    threads: int | None = None
    client: ClientOptions = ClientOptions()

    def __post_init__(self) -> None:
        for name in ("outputs", "keep"):
            # A string is one name, not its letters.
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, (getattr(self, name),))

    def __call__(self, columns: Arrays) -> Outputs:
        """Answers a batch.

        Args:
            columns: By name, or as a DataFrame, arrays or lists with a row for each example, any dtypes that become the
                signature's without changing a value; of more columns than the inputs the others are left out.

        Returns:
            By name, the columns of ``keep`` and the outputs, with as many rows.

        Raises:
            ConfigurationError: A column of ``keep`` has the name of an output.
            ModelNotFoundError: There is no such model, or version.
            SignatureNotFoundError: It has no such signature.
            InvalidInputError: A column is missing, or is not what the signature takes.
            LoadError: The model cannot be loaded.
            UnavailableError: The server cannot be reached.
        """
        inputs, outputs, compute = self._opened
        taken = sorted({*self.keep} & {*(self.outputs or outputs)})
        if taken:
            raise ConfigurationError(
                f"keep (--keep) names {taken}, and so are outputs of the model called. Give the columns other names or "
                "leave the outputs out: outputs (--outputs)."
            )
        missing = sorted({*inputs, *self.keep} - set(columns))
        if missing:
            raise InvalidInputError(f"The batch has the columns {sorted(columns)}; {missing} are missing.")
        answers = compute({name: _column(columns[name], *spec) for name, spec in inputs.items()})
        kept = {name: np.asarray(columns[name]) for name in self.keep}
        return kept | {name: answers[name] for name in self.outputs or answers}

    def row_shapes(self) -> dict[str, Sequence[int] | None]:
        """Shapes of the inputs without the batch dimension, by name; None for a shape that is not known.

        Raises:
            As a call does.
        """
        inputs, *_ = self._opened
        return {name: None if shape is None else tuple(shape[1:]) for name, (_, shape) in inputs.items()}

    def __getstate__(self) -> dict[str, Any]:
        """The arguments alone: what was opened stays in the process that opened it."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def _opened(self) -> _Opened:
        return self._connect(self.server) if self.server is not None else self._load()

    def _connect(self, server: str) -> _Opened:
        client = connect(server, self.client)
        weakref.finalize(self, client.close)
        signatures = client.metadata(self.model, version=self.version).callable_signatures
        if self.signature not in signatures:
            raise SignatureNotFoundError(
                f"Model {self.model!r} has no signature {self.signature!r}; it has {', '.join(sorted(signatures))}."
            )
        options: dict[str, Any] = {"version": self.version, "signature": self.signature, "outputs": self.outputs}
        call: Any = partial(client.predict, self.model, **options)
        signature = signatures[self.signature]
        inputs = {name: (spec.dtype, spec.shape) for name, spec in signature.inputs.items()}
        return inputs, tuple(signature.outputs), lambda arrays: dict(call(arrays).outputs)

    def _load(self) -> _Opened:
        # Here, for a worker that calls a server needs no runtime.
        from modelyard.serving import LoadOptions, load_servable
        from modelyard.serving.repository import VersionCache

        location = locate(self.model)
        version = find_version(location, "latest" if self.version is None else str(self.version))
        cache = VersionCache(location.name, None)
        options = LoadOptions(runtime=self.runtime, threads=self.threads)  # type: ignore[arg-type]
        servable = load_servable(location.name, version.number, cache.fetch(version), options)
        # The cache deletes its copies when it goes: it lives as long as what was loaded from them.
        weakref.finalize(self, lambda _: servable.close(), cache)
        signature = servable.signature(self.signature)
        names = list(self.outputs or (spec.name for spec in signature.outputs))
        inputs = {spec.name: (spec.dtype, spec.shape) for spec in signature.inputs}
        return inputs, names, lambda arrays: servable.run(signature, arrays, names)


def _column(values: object, dtype: str, shape: Sequence[int] | None) -> npt.NDArray[Any]:
    """A column of an engine as the array of an input."""
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if isinstance(values, np.ndarray) and values.dtype == object and len(values) and np.ndim(values[0]):
        # Engines have an array or a list in each row.
        try:
            values = np.stack(values.tolist())
        except ValueError as exc:
            raise InvalidInputError(f"The rows of a column of {dtype} differ in their shapes: {exc}.") from exc
    array = as_wire_array(values)
    cast = cast_unchanged(array, dtype)
    array = array if cast is None else cast
    row = () if shape is None else tuple(shape[1:])
    # Tables have no dimensions: a row that is flat has as many values.
    flat = array.ndim == 2 and len(row) > 1 and array[:1].size == abs(math.prod(row))
    return array.reshape(len(array), *row) if flat else array
