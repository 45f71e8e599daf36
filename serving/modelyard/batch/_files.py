"""Rows from and to files: JSON lines, Parquet, TFRecords of ``tf.Example``, and images."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt

from modelyard.clients.values import IMAGES as IMAGE_SUFFIXES
from modelyard.clients.values import plain_value
from modelyard.errors import ConfigurationError, InvalidInputError
from modelyard.wire import frame_record, json_text, read_records, tensorflow_pb2

_T = TypeVar("_T")
Columns = Mapping[str, Any]
Form = Literal["jsonl", "parquet", "tfrecord"]
#: What :func:`form_of` finds besides.
IMAGES = "images"
#: The column that says which image a row is.
PATH = "path"
_SUFFIXES: dict[str, str] = {
    ".jsonl": "jsonl",
    ".parquet": "parquet",
    ".tfrecord": "tfrecord",
    **dict.fromkeys(IMAGE_SUFFIXES, IMAGES),
}


def batched(items: Iterable[_T], size: int) -> Iterator[tuple[_T, ...]]:
    """As ``itertools.batched``, which Python 3.11 does not have."""
    rest = iter(items)
    while batch := tuple(islice(rest, size)):
        yield batch


def form_of(path: str) -> str:
    """What a file holds, by its name; ``part.tfrecord-00000-of-00008`` and ``part.jsonl.gz`` count as their kind."""
    name = path.rpartition("/")[2].lower().removesuffix(".gz")
    found = [form for suffix, form in _SUFFIXES.items() if name.endswith(suffix) or f"{suffix}-" in name]
    if not found:
        raise ConfigurationError(f"{path} is no file that can be read; expected {', '.join(_SUFFIXES)}.")
    return found[0]


def read_columns(path: Path, form: str, rows: int, inputs: Mapping[str, Sequence[int] | None]) -> Iterator[Columns]:
    """Reads a file as columns by name, some rows at a time.

    Args:
        path: The file.
        form: What it holds.
        rows: Rows of a batch.
        inputs: Shapes of the inputs, without a batch dimension, by name.

    Raises:
        IntegrityError: A TFRecord file is damaged.
        InvalidInputError: The file is not of its form, or a row has other fields than the first of its batch.
    """
    if form == "parquet":
        yield from _read_parquet(path, rows)
        return
    lines = _read_lines(path) if form == "jsonl" else _read_examples(path, inputs)
    first = 0
    for batch in batched(lines, rows):
        names = batch[0].keys()
        for number, row in enumerate(batch, first + 1):
            if row.keys() != names:
                raise InvalidInputError(f"Row {number} has the fields {sorted(row)}; those before it {sorted(names)}.")
        first += len(batch)
        yield {name: [row[name] for row in batch] for name in names}


def _read_lines(path: Path) -> Iterator[dict[str, object]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line, object_hook=_bytes)
            except (ValueError, RecursionError) as exc:
                raise InvalidInputError(f"Line {number} is not JSON: {exc}") from exc
            if not isinstance(row, dict):
                raise InvalidInputError(f"Line {number} is a {type(row).__name__}; expected an object of fields.")
            yield row


def _bytes(value: dict[str, Any]) -> Any:
    # As in the REST API.
    return base64.b64decode(value["b64"], validate=True) if value.keys() == {"b64"} else value


def _read_parquet(path: Path, rows: int) -> Iterator[Columns]:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(rows):
                yield {
                    name: column.to_numpy(zero_copy_only=False)
                    for name, column in zip(batch.schema.names, batch.columns, strict=True)
                }
    except pa.ArrowException as exc:
        raise InvalidInputError(f"It is no Parquet file: {exc}") from exc


def _read_examples(path: Path, inputs: Mapping[str, Sequence[int] | None]) -> Iterator[dict[str, object]]:
    from google.protobuf.message import DecodeError

    for number, record in enumerate(read_records(path, checksum=google_crc32c.value), 1):
        try:
            features = tensorflow_pb2.Example.FromString(record).features.feature
        except DecodeError as exc:
            raise InvalidInputError(f"Record {number} is no tf.Example: {exc}") from exc
        row = {name: _values(feature, inputs.get(name, ())) for name, feature in features.items()}
        if len(inputs) == 1 and not inputs.keys() & row.keys():
            # The signature reads the whole message.
            row |= dict.fromkeys(inputs, record)
        yield row


def _values(feature: tensorflow_pb2.Feature, shape: Sequence[int] | None) -> Any:
    kind = feature.WhichOneof("kind")
    values = list(getattr(feature, kind).value) if kind else []
    return values[0] if len(values) == 1 and not shape else values


class _Write(Protocol):
    def __call__(self, columns: Columns, /) -> None: ...


@contextmanager
def writing(path: Path, form: str) -> Iterator[_Write]:
    """Opens a file for columns of answers: what is given takes them, with as many rows each.

    Bytes that are text become text. In Parquet and TFRecords a row of several dimensions is a flat list.

    Args:
        path: The file.
        form: ``jsonl``, ``parquet`` or ``tfrecord``.
    """
    if form == "parquet":
        with _writing_parquet(path) as write:
            yield write
        return
    line: Callable[[Mapping[str, Any]], bytes] = _json_line if form == "jsonl" else _example
    with path.open("wb") as file:

        def write_rows(columns: Columns) -> None:
            for values in zip(*columns.values(), strict=True):
                file.write(line(dict(zip(columns, values, strict=True))))

        yield write_rows


def _json_line(row: Mapping[str, object]) -> bytes:
    return json_text({name: plain_value(value) for name, value in row.items()}, ensure_ascii=False).encode() + b"\n"


def _example(row: Mapping[str, object]) -> bytes:
    example = tensorflow_pb2.Example()
    for name, value in row.items():
        feature, values = example.features.feature[name], np.asarray(value).ravel()
        if values.dtype.kind == "f":
            feature.float_list.value.extend(values.tolist())
        elif values.dtype.kind in "iub":
            feature.int64_list.value.extend(values.astype(np.int64).tolist())
        else:
            feature.bytes_list.value.extend(
                each.encode() if isinstance(each, str) else bytes(each) for each in values.tolist()
            )
    return frame_record(example.SerializeToString(), checksum=google_crc32c.value)


@contextmanager
def _writing_parquet(path: Path) -> Iterator[_Write]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer: Any = None

    def write(columns: Columns) -> None:
        nonlocal writer
        table = pa.table({name: _arrow(np.asarray(values)) for name, values in columns.items()})
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        pq.write_table(pa.table({}), path)


def _arrow(values: npt.NDArray[Any]) -> Any:
    if values.dtype == object and values.ndim == 1:
        return [plain_value(each) if isinstance(each, bytes | np.ndarray) else each for each in values]
    return values if values.ndim == 1 else list(values.reshape(len(values), -1))
