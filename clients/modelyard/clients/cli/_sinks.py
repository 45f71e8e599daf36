"""Where results go: lines for people, CSV, JSON lines, or one file of arrays."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TextIO

import numpy as np
import numpy.typing as npt

from modelyard.clients.api import RowResult
from modelyard.clients.values import plain_value
from modelyard.console import printable
from modelyard.errors import ConfigurationError, InvalidRequestError
from modelyard.wire import json_text

_FORMATS = ("csv", "jsonl", "npz")
#: How each of our JSON lines begins.
_BEGIN = b'{"index": '
#: For names of files that are no UTF-8; what is written for them is an escape of JSON, too.
_ERRORS = "backslashreplace"
Outputs = Mapping[str, npt.NDArray[Any]]


class Sink(ABC):
    """Takes results, one at a time."""

    @abstractmethod
    def write(self, name: str, result: RowResult) -> None:
        """Takes one result."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(complete=kind is None)

    @abstractmethod
    def close(self, *, complete: bool) -> None:
        """Ends the output."""


def open_sink(output: str | None, *, resume: bool) -> Sink:
    """Opens the output that the command line names."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_ERRORS)
    if output is None:
        return Lines()
    kind = output if output in _FORMATS else Path(output).suffix.lower().removeprefix(".")
    to_stdout = output in _FORMATS
    if kind not in _FORMATS or (to_stdout and kind == "npz"):
        raise ConfigurationError(
            f"Cannot write to {output!r}: expected csv or jsonl, or a file whose name ends in .csv, .jsonl or .npz."
        )
    if resume and (kind != "jsonl" or to_stdout):
        raise ConfigurationError(f"Cannot go on with {output!r}: --resume takes a file of JSON lines (.jsonl).")
    if kind == "npz":
        return Arrays(Path(output))
    try:
        file = None if to_stdout else open(output, "a" if resume else "w", encoding="utf-8", errors=_ERRORS, newline="")
    except OSError as exc:
        raise _unwritable(output, exc) from exc
    return Csv(file) if kind == "csv" else JsonLines(file)


def done_rows(output: str) -> set[int]:
    """Indices of the rows that a file of JSON lines has answers for; a line that was cut short is removed.

    Raises:
        ConfigurationError: The file holds something else, or cannot be read and written.
    """
    done: set[int] = set()
    whole = 0
    try:
        with Path(output).open("r+b") as lines:
            for line in lines:
                # A full disk, or a process that was killed, leaves a part of its last line.
                if not line.endswith(b"\n") and line[: len(_BEGIN)] == _BEGIN[: len(line)]:
                    os.truncate(output, whole)
                    break
                row = json.loads(line)
                if "error" not in row:
                    done.add(int(row["index"]))
                whole += len(line)
    except FileNotFoundError:
        return done
    except OSError as exc:
        raise _unwritable(output, exc) from exc
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as exc:
        raise ConfigurationError(f"Cannot go on with {output}: it holds something else than our JSON lines.") from exc
    return done


def _unwritable(output: object, exc: OSError) -> ConfigurationError:
    return ConfigurationError(f"{output} cannot be written: {exc.strerror}.")


class _Text(Sink):
    def __init__(self, file: TextIO | None) -> None:
        self._own = file
        self._file = sys.stdout if file is None else file

    def close(self, *, complete: bool) -> None:
        if self._own is not None:
            with self._writing():
                self._own.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Names a file that cannot be written any more, as on a full disk."""
        try:
            yield
        except BrokenPipeError:
            # Its reader has what it wanted.
            raise
        except OSError as exc:
            raise _unwritable("Standard output" if self._own is None else self._own.name, exc) from exc


class Lines(_Text):
    """``name, label, probability`` with tabs between."""

    def __init__(self) -> None:
        super().__init__(None)

    def write(self, name: str, result: RowResult) -> None:
        """Takes one result; failures are reported elsewhere."""
        if result.outputs is None:
            return
        label, probability = _label(result.outputs)
        with self._writing():
            self._file.write(f"{name}\t{printable(label)}\t{probability:.4f}\n")


class JsonLines(_Text):
    """An object for each row: index, input, and the outputs or the error; NaN and infinity are null."""

    def write(self, name: str, result: RowResult) -> None:
        row: dict[str, object] = {"index": result.index, "input": name}
        if result.outputs is None:
            row["error"] = "" if result.error is None else result.error.message
        else:
            row["outputs"] = {key: plain_value(value) for key, value in result.outputs.items()}
        try:
            line = json_text(row, ensure_ascii=False)
        except TypeError as exc:
            raise InvalidRequestError(f"{name}: JSON has no complex numbers. Use npz.") from exc
        with self._writing():
            self._file.write(line + "\n")


class Csv(_Text):
    """A line for each row; an output of several values has a column for each."""

    def __init__(self, file: TextIO | None) -> None:
        super().__init__(file)
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._columns: list[str] | None = None
        self._early: list[tuple[int, str, str]] = []

    def write(self, name: str, result: RowResult) -> None:
        """Takes one result; those that fail before the first answer wait for it, because it names the columns."""
        if result.outputs is None:
            error = "" if result.error is None else result.error.message
            if self._columns is None:
                self._early.append((result.index, name, error))
            else:
                self._row([result.index, name, error, *[""] * len(self._columns)])
            return
        cells = dict(cell for key, value in result.outputs.items() for cell in _cells(key, value))
        if self._columns is None:
            _refuse_taken(result.outputs, ("index", "input", "error"))
            self._start(list(cells))
        elif list(cells) != self._columns:
            raise InvalidRequestError(f"{name}: its outputs have another shape than the first row's. Use jsonl.")
        self._row([result.index, name, "", *cells.values()])

    def close(self, *, complete: bool) -> None:
        if self._columns is None:
            self._start([])
        super().close(complete=complete)

    def _start(self, columns: list[str]) -> None:
        self._columns = columns
        self._row(["index", "input", "error", *columns])
        for index, name, error in self._early:
            self._row([index, name, error, *[""] * len(columns)])

    def _row(self, cells: Sequence[object]) -> None:
        with self._writing():
            self._writer.writerow(cells)


class Arrays(Sink):
    """One array for each output, with ``index`` and ``input`` beside; held in memory until the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._index: list[int] = []
        self._names: list[str] = []
        self._rows: list[Outputs] = []

    def write(self, name: str, result: RowResult) -> None:
        """Takes one result; rows that failed are left out, as ``index`` shows."""
        if result.outputs is not None:
            # The last two are arguments of numpy's.
            _refuse_taken(result.outputs, ("index", "input", "file", "allow_pickle"))
            self._index.append(result.index)
            self._names.append(name)
            self._rows.append(result.outputs)

    def close(self, *, complete: bool) -> None:
        """Writes the file, where all results are there."""
        if not complete:
            return
        names = list(self._rows[0]) if self._rows else []
        try:
            columns = {name: _stacked(name, [row[name] for row in self._rows]) for name in names}
        except ValueError as exc:
            raise InvalidRequestError(f"Rows have outputs of different shapes: {exc}. Use jsonl.") from exc
        reserved = {"index": np.array(self._index, np.int64), "input": np.array(self._names, np.str_)}
        try:
            np.savez(self._path, allow_pickle=False, **{**columns, **reserved})
        except OSError as exc:
            raise _unwritable(self._path, exc) from exc


def _refuse_taken(outputs: Outputs, taken: Sequence[str]) -> None:
    found = [name for name in outputs if name in taken]
    if found:
        raise InvalidRequestError(f"The model has an output {found[0]!r}, which this form has itself. Use jsonl.")


def _stacked(name: str, values: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    array = np.stack(values)
    if array.dtype.kind != "O":
        return array
    # Object arrays need pickle: strings are kept as bytes of a fixed width, filled up with zeros.
    kept = array.astype(np.bytes_)
    if np.any(kept.astype(object) != array):
        raise InvalidRequestError(
            f"The output {name!r} has strings that end with a zero byte, which npz drops. Use jsonl."
        )
    return kept


def _cells(name: str, value: npt.NDArray[Any]) -> list[tuple[str, object]]:
    array = np.asarray(value)
    if array.ndim == 0:
        return [(name, plain_value(array.item()))]
    return [(f"{name}[{','.join(map(str, where))}]", plain_value(array[where])) for where in np.ndindex(*array.shape)]


def _label(outputs: Outputs) -> tuple[str, float]:
    missing = [name for name in ("class_id", "probabilities") if name not in outputs]
    if missing:
        raise InvalidRequestError(
            f"The model returns {', '.join(sorted(outputs))}; a classifier also returns {' and '.join(missing)}. "
            "Choose a form with --output."
        )
    try:
        index = int(outputs["class_id"])
        label = plain_value(np.asarray(outputs["label"]).item()) if "label" in outputs else index
        return str(label), float(outputs["probabilities"][index])
    except (IndexError, TypeError, ValueError) as exc:
        shapes = ", ".join(f"{name} {value.dtype} {list(value.shape)}" for name, value in sorted(outputs.items()))
        raise InvalidRequestError(
            "A classifier returns for each row one class_id, probabilities by class, and perhaps one label; received "
            f"{shapes}. Choose a form with --output."
        ) from exc
