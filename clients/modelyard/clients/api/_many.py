"""Many rows through one call: batches, several at a time, in bounded memory, with errors by row."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.clients.transport import check_seconds
from modelyard.clients.values import Prediction
from modelyard.errors import ConfigurationError, InvalidInputError, ModelyardError, ProtocolError, RequestError
from modelyard.wire import refuse_masked

Row = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class ManyOptions:
    """How many rows travel.

    Attributes:
        batch_size: Rows in a call.
        concurrency: Calls at a time. Memory holds about twice so many batches, and no more.
        ordered: Results come in the order of the rows; else as soon as they are there.
        skip: Indices that are not sent and have no result, such as those that an earlier run has done.
        progress: Called with the number of rows done and failed so far, after each batch.
        timeout_s: Deadline of each call in seconds; None for the client's.
    """

    batch_size: int = 32
    concurrency: int = 4
    ordered: bool = True
    skip: Container[int] = frozenset()
    progress: Callable[[int, int], None] | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "concurrency"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(f"Expected a whole number of 1 or more; received {name}={value!r}.")
        if self.timeout_s is not None:
            check_seconds(self.timeout_s, "timeout_s")
        # A generator has no elements, but those that nobody has looked for yet.
        if not isinstance(self.skip, Container):
            raise ConfigurationError(f"Expected skip to be a set of indices, or the like; received {self.skip!r}.")
        if self.progress is not None and not callable(self.progress):
            raise ConfigurationError(f"Expected progress to be a function, or None; received {self.progress!r}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class RowResult:
    """What came of one row.

    Attributes:
        index: Its place among the rows, from 0.
        outputs: Its outputs by name, without the dimension of the batch; None where it failed.
        error: Why it failed; None where it did not.
    """

    index: int
    outputs: Mapping[str, npt.NDArray[Any]] | None
    error: ModelyardError | None

    @property
    def ok(self) -> bool:
        """Whether there are outputs."""
        return self.error is None


Batch = list[tuple[int, Row]]
#: Yields the inputs of a call, receives its answer, and returns the results of its rows.
BatchSteps = Generator[dict[str, object], Prediction, list[RowResult]]


def batches(rows: Iterable[Row], options: ManyOptions) -> Iterator[Batch]:
    """Cuts rows into batches; where the rows raise, those before it are a batch all the same."""
    batch: Batch = []
    try:
        for index, row in enumerate(rows):
            if index not in options.skip:
                batch.append((index, row))
            if len(batch) == options.batch_size:
                yield batch
                batch = []
    except Exception:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def batch_steps(batch: Batch) -> BatchSteps:
    """Predicts a batch; where the request is at fault, its halves, until the rows at fault are found."""
    try:
        prediction = yield stack([row for _, row in batch])
        return _split(batch, prediction)
    except ModelyardError as exc:
        if len(batch) == 1 or not isinstance(exc, RequestError):
            return [RowResult(index=index, outputs=None, error=exc) for index, _ in batch]
    middle = len(batch) // 2
    first = yield from batch_steps(batch[:middle])
    second = yield from batch_steps(batch[middle:])
    return first + second


def stack(rows: Sequence[Row]) -> dict[str, Any]:
    """The inputs of a batch from those of its rows."""
    for row in rows:
        # A row of a file that cannot be read: its error takes its place among the rows.
        if isinstance(row, ModelyardError):
            raise row
        if not isinstance(row, Mapping):
            raise InvalidInputError(f"Expected a mapping from input name to value; received {type(row).__name__}.")
        if row.keys() != rows[0].keys():
            raise InvalidInputError(f"Rows of one batch differ: inputs {sorted(rows[0])} and {sorted(row)}.")
    inputs: dict[str, Any] = {}
    for name, first in rows[0].items():
        values: list[Any] = [row[name] for row in rows]
        if isinstance(first, (np.ndarray, np.generic)):
            try:
                refuse_masked(values)
                inputs[name] = np.stack(values)
            except InvalidInputError as exc:
                raise InvalidInputError(f"Input {name!r}: {exc.message}") from exc
            except (TypeError, ValueError) as exc:
                raise InvalidInputError(f"Input {name!r}: rows of one batch differ: {exc}.") from exc
        else:
            inputs[name] = values
    return inputs


class Progress:
    """Counts rows and tells the caller."""

    def __init__(self, options: ManyOptions) -> None:
        self._tell = options.progress
        self._done = self._failed = 0

    def count(self, results: list[RowResult]) -> list[RowResult]:
        """Counts the results of a batch, and returns them."""
        self._done += len(results)
        self._failed += sum(not result.ok for result in results)
        if self._tell is not None:
            self._tell(self._done, self._failed)
        return results


def _split(batch: Batch, prediction: Prediction) -> list[RowResult]:
    for name, array in prediction.items():
        if array.ndim == 0 or len(array) != len(batch):
            raise ProtocolError(
                f"Output {name!r} has shape {list(array.shape)} for {len(batch)} rows: its rows cannot be told apart. "
                "Leave it out with outputs, or call predict."
            )
    return [
        RowResult(index=index, outputs={name: array[row, ...] for name, array in prediction.items()}, error=None)
        for row, (index, _) in enumerate(batch)
    ]
