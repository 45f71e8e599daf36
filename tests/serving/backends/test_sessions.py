"""Sessions of a graph by the shapes of its inputs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, cast

import numpy as np
from onnx import TensorProto, helper, save

from modelyard.serving.backends._operators import CONVOLUTIONS, RECURRENT, graphs_with
from modelyard.serving.backends._sessions import _MOST, ShapeSessions


def test_each_shape_has_a_session_of_its_own() -> None:
    counter = itertools.count(1)
    sessions = ShapeSessions(cast(Any, lambda: next(counter)))

    def of(*shape: int) -> Any:
        return sessions.of({"x": np.zeros(shape), "y": np.zeros(2)})

    assert [of(1, 4), of(2, 4), of(1, 4), of(2, 4)] == [1, 2, 1, 2]
    # What has not been used for longest makes way.
    for rows in range(3, _MOST + 1):
        of(rows, 4)
    assert of(1, 4) == 1
    of(_MOST + 1, 4)
    assert of(1, 4) == 1
    assert of(2, 4) == _MOST + 2


def test_operators_are_found_in_the_file(tmp_path: Path) -> None:
    files: dict[str, Path] = {}
    for name in ("Conv", "Convert", "LSTM"):
        node = helper.make_node(name, ["x"], ["y"], domain="some")
        value = [helper.make_tensor_value_info(each, TensorProto.FLOAT, [1]) for each in "xy"]
        save(
            helper.make_model(helper.make_graph([node], "g", value[:1], value[1:])),
            files.setdefault(name, tmp_path / name),
        )
    assert graphs_with(files, CONVOLUTIONS) == {"Conv"}
    assert graphs_with(files, RECURRENT) == {"LSTM"}
