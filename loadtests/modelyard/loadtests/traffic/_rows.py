"""Rows for the signatures of any model: from a file, from recorded requests, or random."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from modelyard.clients import SignatureInfo, TensorInfo, prepare_inputs, read_rows
from modelyard.errors import ConfigurationError, ModelyardError
from modelyard.loadtests.traffic._answers import class_output
from modelyard.loadtests.traffic._requests import Array, Arrays
from modelyard.wire import dtype_by_name, object_array, serving_pb2, tensors_to_arrays

#: More of a file is not read.
_MAX_ROWS, _MAX_BYTES = 10_000, 1 << 28
_RANDOM_ROWS, _RANDOM_BYTES = 512, 1 << 26
#: Names of the column with the class of each row; the first is that of ``modelyard export --data``.
_LABELS = ("labels", "label")


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """One row, or a whole request of a signature whose inputs have no dimension for rows."""

    #: By name, with the signature's rank and dtypes; one row ``[1, ...]``.
    inputs: Arrays
    #: Its class ``[1]``, or its outputs as they were recorded ``[1, ...]``; None where nothing is known.
    expected: npt.NDArray[np.int64] | Arrays | None = None


class Rows:
    """Rows for one signature.

    Attributes:
        per_row: Whether every input has a dimension of any length for the rows.
        note: What there is to say about them.
        signature: What they are for.
    """

    def __init__(self, signature: SignatureInfo, rows: Sequence[Row], note: str = "") -> None:
        self.signature = signature
        self.note = note
        self.per_row = _per_row(signature)
        self._groups: dict[tuple[object, ...], list[Row]] = {}
        for row in rows:
            key = (type(row.expected), *(array.shape for array in row.inputs.values()))
            self._groups.setdefault(key, []).append(row)

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    @property
    def values(self) -> int:
        """Numbers and strings in the largest row."""
        return max(sum(array.size for array in rows[0].inputs.values()) for rows in self._groups.values())

    def batches(self, rows: int, count: int, rng: random.Random) -> Iterator[Row]:
        """Rows put together; rows of different shapes never are."""
        if rows > 1 and not self.per_row:
            taken = ", ".join(f"{info.name} {describe(info)}" for info in self.signature.inputs.values())
            raise ConfigurationError(
                f"{rows} rows do not fit into a request of signature {self.signature.name!r}, which takes {taken}: "
                "send one at a time."
            )
        groups = list(self._groups.values())
        for number, group in enumerate(groups):
            # At least one of each shape, and together in proportion to how often a shape occurs.
            share = min(max(round(count * len(group) / len(self)), number < count), len(group))
            order = rng.sample(group, len(group))
            for index in range(share):
                yield _joined([order[(index * rows + each) % len(order)] for each in range(rows)])


def _joined(rows: Sequence[Row]) -> Row:
    if len(rows) == 1:
        return rows[0]
    inputs = {name: np.concatenate([row.inputs[name] for row in rows]) for name in rows[0].inputs}
    # Rows of one group have all the same of these.
    outputs = [row.expected for row in rows if isinstance(row.expected, Mapping)]
    if outputs:
        return Row(
            inputs=inputs, expected={name: np.concatenate([each[name] for each in outputs]) for name in outputs[0]}
        )
    labels = [row.expected for row in rows if isinstance(row.expected, np.ndarray)]
    return Row(inputs=inputs, expected=np.concatenate(labels) if labels else None)


def rows_of_file(path: Path, signature: SignatureInfo) -> Rows:
    """Read rows from a file that modelyard's clients can read.

    A value ``labels`` that is no input is the class; arrays may be named ``SIGNATURE/INPUT``.
    """
    found: list[Row] = []
    size = 0
    labelled = False
    classes = bool(class_output(signature.outputs))
    try:
        for source in read_rows([path], signature):
            if source.error is not None:
                raise source.error
            values = dict(source.inputs)
            label = next(
                (values.pop(name) for name in _LABELS if name in values and name not in signature.inputs), None
            )
            labelled |= label is not None
            found.append(_row(values, label if classes else None, signature, source.name))
            size += sum(array.nbytes for array in found[-1].inputs.values())
            if len(found) >= _MAX_ROWS or size >= _MAX_BYTES:
                break
    except ConfigurationError:
        raise
    except ModelyardError as exc:
        raise ConfigurationError(f"The data does not fit signature {signature.name!r}. {exc.message}") from exc
    if not found:
        raise ConfigurationError(f"{path} holds no rows.")
    note = "; its labels are not used: no output tells a class" if labelled and not classes else ""
    return Rows(signature, found, note)


def rows_of_log(entry: serving_pb2.PredictLog, signature: SignatureInfo, where: str) -> list[Row]:
    """The rows of a recorded Predict; ``where`` it was found is for messages."""
    try:
        inputs = prepare_inputs(tensors_to_arrays(entry.request.inputs), signature)
        # Of a filter the recorded answer has some outputs only; what is sent has no filter.
        outputs = {} if entry.request.output_filter else tensors_to_arrays(entry.response.outputs)
    except ModelyardError as exc:
        raise ConfigurationError(f"{where} does not fit signature {signature.name!r}. {exc.message}") from exc
    whole = Row(inputs=inputs, expected=outputs or None)
    count = len(next(iter(inputs.values()))) if inputs and _per_row(signature) else 0
    arrays = [*inputs.values(), *outputs.values()]
    if not count or any(array.ndim == 0 or len(array) != count for array in arrays):
        return [whole]
    return [
        Row(
            inputs={name: array[index : index + 1] for name, array in inputs.items()},
            expected={name: array[index : index + 1] for name, array in outputs.items()} or None,
        )
        for index in range(count)
    ]


def random_rows(signature: SignatureInfo, seed: int) -> Rows:
    """Random rows: floats from a standard normal distribution, integers from 0 to 1, strings of small letters."""
    rng = np.random.default_rng(seed)
    one = {name: _random(rng, signature, info) for name, info in signature.inputs.items()}
    size = max(sum(array.nbytes for array in one.values()), 1)
    found = [Row(inputs=one)]
    for _ in range(min(_RANDOM_ROWS, _RANDOM_BYTES // size) - 1):
        found.append(Row(inputs={name: _random(rng, signature, info) for name, info in signature.inputs.items()}))
    return Rows(signature, found)


def describe(info: TensorInfo) -> str:
    """An input in a few characters, such as ``float32[-1,3]``."""
    return info.dtype if info.shape is None else f"{info.dtype}[{','.join(map(str, info.shape))}]"


def _random(rng: np.random.Generator, signature: SignatureInfo, info: TensorInfo) -> Array:
    wanted = dtype_by_name(info.dtype).numpy
    if info.shape is None or wanted is None:
        raise ConfigurationError(
            f"Input {info.name!r} of signature {signature.name!r} is {describe(info)}; random values are made for "
            "known ranks and dtypes only: give --data FILE."
        )
    shape = [max(size, 1) for size in info.shape]
    if wanted.kind == "O":
        letters = np.array(list(string.ascii_lowercase))
        words = ["".join(rng.choice(letters, 4)).encode() for _ in range(int(np.prod(shape)))]
        return object_array(words).reshape(shape)
    if wanted.kind in "iub":
        return rng.integers(0, 2, shape).astype(wanted)
    return rng.standard_normal(shape).astype(wanted)


def _row(values: Mapping[str, object], label: object, signature: SignatureInfo, where: str) -> Row:
    known = signature.inputs
    # An archive for several signatures, as modelyard export takes it.
    values = {
        name.removeprefix(f"{signature.name}/"): value
        for name, value in values.items()
        if "/" not in name or name in known or name.startswith(f"{signature.name}/")
    }
    try:
        inputs = prepare_inputs({name: _one(value, known.get(name)) for name, value in values.items()}, signature)
    except ModelyardError as exc:
        raise ConfigurationError(f"{where} does not fit. {exc.message}") from exc
    if label is None:
        return Row(inputs=inputs)
    if np.asarray(label).ndim or np.asarray(label).dtype.kind not in "iu":
        raise ConfigurationError(f"{where}: the label is {label!r}; expected the number of a class.")
    return Row(inputs=inputs, expected=np.array([label], dtype=np.int64))


def _one(value: object, info: TensorInfo | None) -> object:
    """A value with the dimension for rows, where it lacks that."""
    try:
        rank = np.asarray(value).ndim
    except ValueError:
        # Lists of different lengths: what is wrong with them is said where they are made an array.
        rank = -1
    return value if info is not None and info.shape is not None and rank == len(info.shape) else [value]


def _per_row(signature: SignatureInfo) -> bool:
    shapes = [info.shape for info in signature.inputs.values()]
    return all(shape is None or shape[:1] == (-1,) for shape in shapes)
