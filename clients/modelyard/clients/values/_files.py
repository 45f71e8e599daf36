"""Rows from files: images, numpy arrays, JSON lines, CSV and TFRecord, read as they are needed."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from modelyard.clients.values._results import SignatureInfo, TensorInfo
from modelyard.errors import ConfigurationError, InvalidInputError, InvalidRequestError, RequestError
from modelyard.wire import cast_unchanged, dtype_by_name, read_records, tensorflow_pb2

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
_TFRECORD = (".tfrecord", ".tfrecords")
KINDS = "images (png, jpg, ...), .npy, .npz, .jsonl, .csv or .tfrecord"


@dataclass(frozen=True, kw_only=True)
class SourceRow:
    """One row of a file.

    Attributes:
        name: The file, and the row's number where a file has many.
        inputs: By input name, without the dimension of the batch; empty where the row cannot be read.
        error: Why it cannot be read; None where it can.
    """

    name: str
    inputs: Mapping[str, object]
    error: RequestError | None = None


def is_image_file(path: Path) -> bool:
    """Whether a file's name is that of an image."""
    return path.suffix.lower() in IMAGES


def read_rows(paths: Sequence[Path | str], signature: SignatureInfo) -> Iterator[SourceRow]:
    """Reads the rows of files, one file after the other; a row that cannot be read has its error, and others follow.

    Args:
        paths: The files; their names' ends say what they are.
        signature: What the rows are for.

    Raises:
        ConfigurationError: A file of another kind, or one that cannot be read.
        IntegrityError: A TFRecord file is damaged or cannot be read.
        InvalidRequestError: A file as a whole does not fit the signature.
    """
    for path in map(Path, paths):
        try:
            yield from _rows(path, signature)
        except OSError as exc:
            raise ConfigurationError(f"{path} cannot be read: {exc.strerror or exc}.") from exc


def count_rows(paths: Sequence[Path]) -> int | None:
    """Counts the rows of files, where that takes a small part of the time that predicting them does.

    Returns the number; None where it is not known before the files are read, or a file cannot be read.
    """
    # Imported where it is needed, as the clients' import time counts.
    import csv

    total = 0
    try:
        for path in paths:
            suffix = path.suffix.lower()
            if suffix in IMAGES:
                total += 1
            elif suffix == ".npy":
                array = np.load(path, mmap_mode="r", allow_pickle=False)
                total += array.shape[0] if array.ndim else 0
            elif suffix == ".jsonl":
                with path.open("rb") as lines:
                    for line in lines:
                        if b'"instances"' in line or b'"inputs"' in line:
                            return None
                        total += bool(line.strip())
            elif suffix == ".csv":
                with path.open(encoding="utf-8", newline="") as text:
                    total += max(0, sum(1 for row in csv.reader(text) if row) - 1)
            else:
                return None
    # What is wrong with a file is said when its rows are read.
    except Exception:
        return None
    return total


def image_input(signature: SignatureInfo) -> str:
    """Name of the one input that takes encoded images or other bytes."""
    inputs = tuple(signature.inputs.values())
    if len(inputs) != 1 or inputs[0].dtype != "string":
        found = ", ".join(f"{info.name} ({info.dtype})" for info in inputs)
        raise InvalidRequestError(
            f"Signature {signature.name!r} takes {found}; expected one string input for the bytes of images. "
            "Choose another with --signature."
        )
    return inputs[0].name


def _rows(path: Path, signature: SignatureInfo) -> Iterator[SourceRow]:
    suffix = path.suffix.lower()
    if suffix in IMAGES:
        # Read when it is sent: a file that cannot be read is the failure of its row alone.
        yield SourceRow(name=str(path), inputs={image_input(signature): path})
    elif suffix in (".npy", ".npz"):
        yield from _numpy(path, signature)
    elif suffix == ".jsonl":
        yield from _json_lines(path, signature)
    elif suffix == ".csv":
        yield from _csv(path, signature)
    elif suffix in _TFRECORD:
        yield from _tfrecord(path, signature)
    else:
        raise ConfigurationError(f"{path}: expected {KINDS}.")


def _numpy(path: Path, signature: SignatureInfo) -> Iterator[SourceRow]:
    import zipfile
    import zlib

    try:
        # Opened here: numpy leaves a file open that is no archive.
        with path.open("rb") as file:
            # Pickles are code: they are not loaded.
            mapped = path.suffix == ".npy"
            loaded = np.load(path if mapped else file, mmap_mode="r" if mapped else None, allow_pickle=False)
            # What is no array in an archive is bytes.
            arrays = {} if isinstance(loaded, np.ndarray) else {name: np.asarray(loaded[name]) for name in loaded.files}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as exc:
        raise InvalidRequestError(f"{path} is no file of plain numpy arrays: {exc}.") from exc
    if isinstance(loaded, np.ndarray):
        if len(signature.inputs) != 1:
            raise InvalidRequestError(
                f"{path} holds one array; signature {signature.name!r} takes {', '.join(signature.inputs)}. Use .npz."
            )
        arrays = {next(iter(signature.inputs)): loaded}
    sizes = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
    if len(set(sizes.values())) != 1 or any(array.ndim == 0 for array in arrays.values()):
        raise InvalidRequestError(f"{path}: expected arrays with a row for each example; received {sizes} rows.")
    for index in range(next(iter(sizes.values()))):
        yield _row(f"{path}:{index}", _numpy_row, arrays, index, signature)


def _row(name: str, read: Callable[..., Mapping[str, object]], *arguments: object) -> SourceRow:
    try:
        return SourceRow(name=name, inputs=read(*arguments))
    except RequestError as exc:
        return SourceRow(name=name, inputs={}, error=exc)


def _numpy_row(arrays: Mapping[str, Any], index: int, signature: SignatureInfo) -> Mapping[str, object]:
    """A row, in the signature's dtypes where no value changes: numpy makes float64 and int64 of what has no dtype."""
    row = {name: array[index] for name, array in arrays.items()}
    for name, value in row.items():
        info = signature.inputs.get(name)
        if info is None or value.dtype.kind in "SUO":
            continue
        row[name] = _cast(name, value, info.dtype)
    return row


def _cast(name: str, value: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    cast = cast_unchanged(value, dtype)
    if cast is None:
        raise InvalidInputError(
            f"Input {name!r} is {value.dtype.name}, whose values {dtype} cannot hold. Cast it before it is "
            "saved, where that is what you mean."
        )
    return cast


def _json_lines(path: Path, signature: SignatureInfo) -> Iterator[SourceRow]:
    """A row a line: an object from input name to value, or the value of the one input; or a REST body with rows."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            name = f"{path}:{number}"
            try:
                found = _json_line(line, signature, path, number)
            except InvalidRequestError as exc:
                yield SourceRow(name=name, inputs={}, error=exc)
                continue
            for index, row in enumerate(found):
                yield SourceRow(name=name if len(found) == 1 else f"{name}:{index}", inputs=row)


def _json_line(line: bytes, signature: SignatureInfo, path: Path, number: int) -> list[dict[str, object]]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise InvalidRequestError(f"{path}, line {number}: not JSON: {exc}.") from exc
    return [
        {name: _from_json(value, path, number) for name, value in row.items()}
        for row in _json_rows(document, signature, f"{path}, line {number}")
    ]


def _json_rows(document: Any, signature: SignatureInfo, where: str) -> Iterator[dict[str, Any]]:
    single = next(iter(signature.inputs)) if len(signature.inputs) == 1 else None
    body = document.keys() - signature.inputs.keys() if isinstance(document, dict) else set()
    if "instances" in body and isinstance(document["instances"], list):
        for instance in document["instances"]:
            yield from _json_rows(instance, signature, where)
    elif "inputs" in body:
        columns = document["inputs"]
        if not isinstance(columns, dict) and single is not None:
            columns = {single: columns}
        if not isinstance(columns, dict) or not all(isinstance(values, list) for values in columns.values()):
            raise InvalidRequestError(f"{where}: 'inputs' has no list for each of {', '.join(signature.inputs)}.")
        if len({len(values) for values in columns.values()}) > 1:
            raise InvalidRequestError(f"{where}: 'inputs' has lists with different numbers of rows.")
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))
    elif isinstance(document, dict) and not (single is not None and document.keys() == {"b64"}):
        yield document
    elif single is not None:
        yield {single: document}
    else:
        raise InvalidRequestError(f"{where}: expected an object from input name to value.")


def _from_json(value: object, path: Path, number: int) -> object:
    if isinstance(value, list):
        return [_from_json(item, path, number) for item in value]
    if isinstance(value, dict):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (KeyError, TypeError, binascii.Error) as exc:
            raise InvalidRequestError(f'{path}, line {number}: expected {{"b64": ...}} for bytes.') from exc
    return value


def _csv(path: Path, signature: SignatureInfo) -> Iterator[SourceRow]:
    import csv

    # With the mark at its beginning that Excel writes, or without.
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, restkey="")
        try:
            for row in reader:
                number = reader.line_num
                yield _row(f"{path}:{number}", _csv_row, row, len(reader.fieldnames or ()), signature, path, number)
        except UnicodeDecodeError as exc:
            raise InvalidRequestError(f"{path} is no UTF-8 text: {exc.reason}. Save it as UTF-8.") from exc
        except csv.Error as exc:
            raise InvalidRequestError(f"{path}, line {reader.line_num + 1}: {exc}.") from exc


def _csv_row(
    row: Mapping[str, str], columns: int, signature: SignatureInfo, path: Path, number: int
) -> Mapping[str, object]:
    if None in row.values() or "" in row:
        raise InvalidRequestError(f"{path}, line {number}: expected {columns} values, as line 1 has.")
    return {name: _from_text(text, signature.inputs.get(name), path, number) for name, text in row.items()}


def _from_text(text: str, info: TensorInfo | None, path: Path, number: int) -> object:
    if info is None or info.dtype == "string":
        return text
    kind = dtype_by_name(info.dtype).numpy
    try:
        if info.dtype == "bool":
            return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]
        return int(text) if kind is not None and kind.kind in "iu" else float(text)
    except (KeyError, ValueError) as exc:
        raise InvalidRequestError(f"{path}, line {number}: {text!r} is no {info.dtype}, as {info.name!r} is.") from exc


def _tfrecord(path: Path, signature: SignatureInfo) -> Iterator[SourceRow]:
    inputs = signature.inputs
    whole = len(inputs) == 1 and next(iter(inputs.values())).dtype == "string"
    for index, data in enumerate(read_records(path)):
        name = f"{path}:{index}"
        if whole:
            yield SourceRow(name=name, inputs={next(iter(inputs)): data})
            continue
        yield _row(name, _example_row, data, inputs, name)


def _example_row(data: bytes, inputs: Mapping[str, TensorInfo], name: str) -> Mapping[str, object]:
    try:
        features = tensorflow_pb2.Example.FromString(data).features.feature
    except DecodeError as exc:
        raise InvalidRequestError(f"{name} is no tf.Example.") from exc
    missing = [key for key in inputs if key not in features]
    if missing:
        raise InvalidRequestError(
            f"{name} lacks the features {', '.join(missing)}; it has {', '.join(sorted(features))}."
        )
    return {key: _feature(features[key], info, name) for key, info in inputs.items()}


def _feature(feature: tensorflow_pb2.Feature, info: TensorInfo, name: str) -> object:
    kind = feature.WhichOneof("kind")
    values = list(getattr(feature, kind).value) if kind else []
    shape = None if info.shape is None else info.shape[1:]
    if info.dtype == "string":
        return values[0] if shape == () and len(values) == 1 else values
    if kind == "bytes_list":
        raise InvalidRequestError(f"{name}: feature {info.name!r} is bytes; the input is {info.dtype}.")
    array = np.array(values, dtype=np.int64 if kind == "int64_list" else np.float64)
    # Features have no booleans: they are the integers 0 and 1.
    if info.dtype == "bool" and kind == "int64_list" and ((array == 0) | (array == 1)).all():
        array = array.astype(np.bool_)
    array = _cast(info.name, array, info.dtype)
    if shape is None:
        return array
    try:
        return array.reshape(shape)
    except ValueError as exc:
        raise InvalidRequestError(
            f"{name}: feature {info.name!r} has {len(values)} values; expected shape {list(shape)}."
        ) from exc
