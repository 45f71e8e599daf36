"""Spark's ``DataFrame.mapInPandas``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from modelyard.batch._model import BatchModel

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

#: Of each element.
_DECODED = np.frompyfunc(lambda value: value.decode() if isinstance(value, bytes) else value, 1, 1)


def map_in_pandas(model: BatchModel) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """A function for ``DataFrame.mapInPandas``: ``frame.mapInPandas(map_in_pandas(model), "id long, label string")``.

    Rows of outputs with dimensions become flat lists, as Spark's columns are.
    Strings of the model are decoded as UTF-8.

    Args:
        model: What answers; its ``keep`` names the columns to hand on. Its columns and
            outputs are the schema's, in its order.
    """

    def answer(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield to_frame(model({name: frame[name].to_numpy() for name in frame.columns}))

    return answer


def to_frame(columns: Mapping[str, npt.NDArray[Any]]) -> pd.DataFrame:
    """Columns as a table: rows of several values are flat arrays, bytes are text.

    Args:
        columns: By name, arrays with as many rows.
    """
    import pandas as pd

    return pd.DataFrame({name: _cells(values) for name, values in columns.items()})


def _cells(values: npt.NDArray[Any]) -> Any:
    if values.dtype == object:
        values = _DECODED(values)
    return [row.ravel() for row in values] if values.ndim > 1 else values
