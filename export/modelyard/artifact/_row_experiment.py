"""An experiment that shows whether the rows of a batch depend on each other, for exporters and servers alike."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from modelyard.errors import ModelyardError

_Arrays = Mapping[str, npt.NDArray[Any]]
_T = TypeVar("_T")

#: Rows of the batches that are computed: one of each kind, and neighbours on both sides.
EXPERIMENT_ROWS = 4
#: One row becomes so many times as large, of either sign: a range, a mean or a sum over the batch is then all its own.
#: Where a model refuses such numbers, smaller ones are tried.
_OUTLIERS = (1e4, 1e2, 10.0)
#: Beside an outlier all is computed as before, at the same place of a batch of the same size: it should not even be
#: rounded differently.
_SAME = 1e-5


def within(seconds: float, work: Callable[[], _T]) -> _T:
    """Does something on a thread that is not waited for beyond a limit: a loop may have no end for some inputs.

    Args:
        seconds: The limit.
        work: What it raises is raised.

    Raises:
        TimeoutError: It is not done by then; its thread goes on.
    """
    found: Future[_T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as exc:
            found.set_exception(exc)

    threading.Thread(target=run, name="modelyard-rows", daemon=True).start()
    return found.result(seconds)


def row_experiment(run: Callable[[_Arrays], _Arrays], inputs: _Arrays, *, tolerance: float = 1e-3) -> str | None:
    """Computes rows alone, together, in another order, and beside an outlier; compares their answers.

    That nothing differs is no proof: a model may treat rows differently on other numbers. Strings and integers have no
    outliers. Raises what ``run`` raises where the model does not even take the batch.

    Args:
        run: Computes a batch; it may raise errors of this package.
        inputs: Arrays by name with :data:`EXPERIMENT_ROWS` rows, more than one of them different.
        tolerance: How far answers may be apart, as a share of their size: runtimes round differently in batches of
            different sizes.

    Returns:
        What was seen, as the end of a sentence; None where the rows do not depend on each other as far as this shows.
    """
    # Rows that are alike have answers of their own, too.
    batch = {name: np.concatenate([array[:-1], array[:1]]) for name, array in inputs.items()}
    together = run(batch)
    for name, array in together.items():
        if array.ndim == 0 or len(array) != EXPERIMENT_ROWS:
            return f"output {name!r} of {EXPERIMENT_ROWS} rows has shape {list(array.shape)}"
    for row in range(EXPERIMENT_ROWS):
        try:
            alone = run({name: array[row : row + 1] for name, array in batch.items()})
        except ModelyardError as exc:
            return f"a row alone is refused, and in a batch it is not: {exc.message}"
        if name := differing_output(alone, _part(together, slice(row, row + 1)), tolerance):
            return f"output {name!r} of a row is another one in a batch than alone"
    order = np.roll(np.arange(EXPERIMENT_ROWS), 1)
    if name := differing_output(run(_part(batch, order)), _part(together, order), tolerance):
        return f"output {name!r} of a row depends on its place in the batch"
    for sign in (1, -1):
        if seen := _beside_outlier(run, batch, together, sign):
            return seen
    return None


def _beside_outlier(run: Callable[[_Arrays], _Arrays], batch: _Arrays, together: _Arrays, sign: int) -> str | None:
    place, others = 1, [row for row in range(EXPERIMENT_ROWS) if row != 1]
    if not any(_is_float(array) for array in batch.values()):
        return None
    for times in _OUTLIERS:
        changed = {name: array.copy() for name, array in batch.items()}
        for array in changed.values():
            if _is_float(array):
                # A row of zeros has no multiple.
                array[place] = np.where(array[place] == 0, sign * times, sign * times * array[place])
        try:
            answers = run(changed)
        except ModelyardError:
            continue
        if name := differing_output(_part(answers, others), _part(together, others), _SAME):
            return f"output {name!r} of a row changes beside a row {times:g} times as large"
        return None
    return None


def _is_float(array: npt.NDArray[Any]) -> bool:
    # numpy itself does not know bfloat16.
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _part(arrays: _Arrays, rows: Any) -> dict[str, npt.NDArray[Any]]:
    return {name: array[rows] for name, array in arrays.items()}


def differing_output(found: _Arrays, expected: _Arrays, tolerance: float) -> str:
    """The name of an output that is not the same, but for a share of its size; empty where all are."""
    return next((name for name, array in expected.items() if not _same(found[name], array, tolerance)), "")


def _same(found: npt.NDArray[Any], expected: npt.NDArray[Any], tolerance: float) -> bool:
    if found.shape != expected.shape:
        return False
    if expected.dtype.kind in "biuOSU":
        return bool((found == expected).all())
    # bfloat16 is no dtype that numpy compares with a tolerance.
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    one, other = found.astype(wide), expected.astype(wide)
    finite = np.abs(other[np.isfinite(other)])
    size = float(finite.max()) if finite.size else 0.0
    return bool(np.allclose(one, other, rtol=tolerance, atol=0.1 * tolerance * size, equal_nan=True))
