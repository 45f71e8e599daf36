"""The log of a server holds its own lines and nobody else's."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.admin import ask
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve

OURS = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [IW] modelyard\.")


def save_lookup(directory: Path) -> None:
    """Saves a model that takes no other integer than 0: what loading tries with it fails."""
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["batch", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])
    table = numpy_helper.from_array(np.ones(1, np.float32), "table")
    graph = helper.make_graph([helper.make_node("Gather", ["table", "x"], ["y"])], "lookup", [x], [y], [table])
    (directory / "onnx").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, str(directory / "onnx" / "serving_default.onnx"))


def foreign_lines(server: RunningServer) -> list[str]:
    return [line for line in server.log_text().splitlines() if not OURS.match(line)]


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_a_probe_that_fails_leaves_no_trace(tmp_path: Path, runtime: str) -> None:
    pytest.importorskip(runtime)
    save_lookup(tmp_path / "lookup" / "1")
    flags = [f"--runtime={runtime}"]
    with serve(tmp_path / "lookup", model="lookup", log_dir=tmp_path, flags=flags) as server:
        assert server.post("/v1/models/lookup:predict", b'{"instances": [[0, 0]]}')[0] == 200
        if runtime == "onnxruntime":
            # It is told to whoever asked.
            status, text = server.post("/v1/models/lookup:predict", b'{"instances": [[0, 9]]}')
            assert (status, "out of data bounds" in text) == (400, True), text
        assert foreign_lines(server) == []


def save_misdeclared(directory: Path) -> None:
    """Saves ``y = 2 x``, whose file says that an answer has one row, whatever the request has."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    (directory / "onnx").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, str(directory / "onnx" / "serving_default.onnx"))


def test_an_answer_of_another_shape_than_the_file_says(tmp_path: Path) -> None:
    """onnxruntime warns of each."""
    save_misdeclared(tmp_path / "double" / "1")
    with serve(tmp_path / "double", model="double", log_dir=tmp_path) as server:
        status, text = server.post("/v1/models/double:predict", b'{"inputs": [[1, 2, 3, 4], [5, 6, 7, 8]]}')
        assert (status, json.loads(text)) == (200, {"outputs": [[2, 4, 6, 8], [10, 12, 14, 16]]}), text
        assert foreign_lines(server) == []


def test_tensorflow_says_nothing_of_itself(half_server: RunningServer) -> None:
    assert "with tensorflow" in half_server.log_text()
    assert not re.search(r"InitializeLog|oneDNN|cuInit|\.cc:\d+\]", half_server.log_text())


@pytest.mark.parametrize(("asked", "sent"), [(None, False), ("0", True)])
def test_nothing_is_told_to_others_unless_it_is_asked_for(asked: str | None, sent: bool, tmp_path: Path) -> None:
    """onnxruntime writes an identifier of the machine, and a database of what it will upload."""
    publish_affine(tmp_path / "m", slope=2.0, intercept=1.0)
    home = tmp_path / "home"
    home.mkdir()
    # In a build nothing is sent either way.
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")}
    variables = {**kept, "HOME": str(home), **({} if asked is None else {"ORT_DISABLE_TELEMETRY": asked})}
    only = "".join(f" {name}='{value}'" for name, value in variables.items())
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec env -i{only} {sys.executable} "$@"\n')
    python.chmod(0o755)
    with serve(tmp_path / "m", model="m", log_dir=tmp_path, python=str(python)) as server:
        assert ask(server, "m") == 3.0
    assert bool(list(home.rglob("deviceid"))) == sent
