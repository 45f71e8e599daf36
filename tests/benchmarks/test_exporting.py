"""benchmarks/exporting: its comparison can fail, a process that dies is a result, and the page counts what it shows."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.exporting import _page
from benchmarks.exporting.__main__ import _read
from benchmarks.exporting._calls import Call, Outputs
from benchmarks.exporting._cells import Cell, classify, in_process, is_sentence, run_cell
from benchmarks.exporting._judge import compare, judge

ROWS = (1, 5)


def scaled(x: Any, factor: float) -> Any:
    return (x * np.float32(factor)).astype(np.float32)


def make_onnx(folder: Path, factor: float, *, output: str = "y", extra: bool = False) -> dict[str, Any]:
    """An artefact that multiplies by a factor."""
    nodes = [helper.make_node("Mul", ["x", "factor"], [output])]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, [None, 2])]
    if extra:
        nodes.append(helper.make_node("Neg", ["x"], ["more"]))
        outputs.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [None, 2]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 2])
    constant = helper.make_tensor("factor", TensorProto.FLOAT, [], [factor])
    graph = helper.make_graph(nodes, "g", [x], outputs, [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, folder / "m.onnx")
    return {"path": str(folder / "m.onnx"), "inputs": ["x"], "outputs": ["y"]}


def make_calls(factor: float) -> list[Call]:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(rows, 2)).astype(np.float32) for rows in ROWS]
    return [Call(inputs={"x": x}, outputs=Outputs(arrays=(scaled(x, factor),), names=("y",))) for x in arrays]


def test_a_right_artefact_is_right(tmp_path: Path) -> None:
    assert judge(make_onnx(tmp_path, 2.0), "onnx", make_calls(2.0), stochastic=(), tolerance=1e-4) == ""


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        ({"factor": 2.01}, "output 'y' is 0.013 off"),
        ({"factor": float("nan")}, "NaN or infinite"),
        ({"factor": 2.0, "output": "z"}, "outputs are named ['z'], the source's ['y']"),
    ],
)
def test_a_wrong_artefact_is_called_wrong(tmp_path: Path, made: dict[str, Any], fault: str) -> None:
    artefact = make_onnx(tmp_path, **made)
    assert fault in judge(artefact, "onnx", make_calls(2.0), stochastic=(), tolerance=1e-4)


def test_an_output_too_many_is_called_wrong(tmp_path: Path) -> None:
    artefact = make_onnx(tmp_path, 2.0, extra=True) | {"outputs": []}
    assert "2 outputs, the source has 1" in judge(artefact, "onnx", make_calls(2.0), stochastic=(), tolerance=1e-4)


def test_a_random_output_that_is_a_constant_is_called_wrong(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    calls = [
        Call(
            inputs=call.inputs,
            outputs=call.outputs,
            draws=[
                Outputs(arrays=(call.outputs.arrays[0] + rng.normal(size=call.outputs.arrays[0].shape),), names=("y",))
                for _ in range(50)
            ],
        )
        for call in make_calls(2.0)
    ]
    artefact = make_onnx(tmp_path, 2.0)
    assert "is not random any more" in judge(artefact, "onnx", calls, stochastic=("y",), tolerance=1e-4)


@pytest.mark.parametrize(
    ("want", "have", "fault"),
    [
        (np.array([1, 2]), np.array([1, 2]), ""),
        (np.array([1, 2]), np.array([1, 3]), "differs"),
        (np.array([1, 2]), np.array([1.0, 2.0]), "is float64"),
        (np.array([[1.0]]), np.array([1.0]), "is [1]"),
        (np.array([b"a"], object), np.array(["a"]), ""),
        (np.array([b"a"], object), np.array([b"b"], object), "differs"),
        (np.array([1.0, np.inf]), np.array([1.0, 3e38]), "NaN or infinite"),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), ""),
        # Small figures: 1e-4 would hide that they have nothing to do with each other.
        (np.array([1e-5, 2e-5], np.float32), np.array([2e-5, 1e-5], np.float32), "is 1e-05 off"),
    ],
)
def test_comparison(want: Any, have: Any, fault: str) -> None:
    found = compare([want], [have], 1e-4)
    assert found.startswith(fault) if not fault else fault in found


def die(folder: Path) -> dict[str, str]:
    os.abort()


def hang(folder: Path) -> dict[str, str]:
    time.sleep(600)
    return {}


def leave(folder: Path) -> dict[str, str]:
    raise SystemExit(3)


def answer(folder: Path) -> dict[str, str]:
    return {"done": ""}


@pytest.mark.parametrize(
    ("work", "limit_s", "verdict", "why"),
    [
        (answer, 60.0, "right", ""),
        (die, 60.0, "unclear", "SIGABRT"),
        (leave, 60.0, "unclear", "exit code 3"),
        (hang, 2.0, "unclear", "not ready after 2 s"),
    ],
)
def test_how_a_process_ends(tmp_path: Path, work: Any, limit_s: float, verdict: str, why: str) -> None:
    said, end = in_process(work, (), tmp_path, limit_s)
    found, reason = classify("ours", said, end, "making it")
    assert found == verdict and why in reason


def test_a_refusal_is_a_sentence() -> None:
    assert classify("ours", {"refused": "Say --optional onnx."}, "", "making it")[0] == "refused"
    assert classify("ours", {"refused": 'in user code:\n  File "x.py"'}, "", "making it")[0] == "unclear"
    assert classify("ours", {"raised": "KeyError: 'x'"}, "", "making it")[0] == "unclear"
    assert classify("ours", {"refused": "It does not load."}, "", "running it")[0] == "unclear"
    assert classify("plain", {"raised": "KeyError: 'x'"}, "", "making it")[0] == "fails"
    assert not is_sentence("x" * 1000)


def test_a_cell_from_the_model_to_the_verdict() -> None:
    cell = run_cell("unsorted_names", "ours", "onnx", limit_s=240.0)
    assert (cell.verdict, cell.why) == ("right", "")


def rows_of(text: str) -> list[list[str]]:
    """The verdicts of each row of the table."""
    lines = [line for line in text.splitlines() if re.search(r"\(`\w+`\) \|", line)]
    return [[part.strip() for part in line.strip("|").split("|")][1:] for line in lines]


def counted(rows: list[list[str]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in rows:
        for ours, plain in zip(row[:3], row[3:], strict=True):
            if not {"skipped", "?"} & {ours, plain}:
                counts["artefacts"] += 1
                counts[f"ours {ours}"] += 1
                counts[f"plain {plain}"] += 1
                counts["only plain"] += ours != "right" and plain == "right"
                counts["only ours"] += ours == "right" and plain != "right"
                counts["both"] += ours == plain == "right"
    return counts


def test_the_page_counts_what_it_shows() -> None:
    text = _page.PAGE.read_text("utf-8")
    table = text.split(_page.START)[1].split(_page.END)[0]
    rows = rows_of(table)
    assert {len(row) for row in rows} == {6}
    counts = counted(rows)
    assert len(rows) >= 60
    assert f"{counts['artefacts']} artefacts tried by both" in table
    assert f"{counts['ours unclear']} unclear, {counts['ours wrong']} silently wrong." in table
    assert f"{counts['plain fails']} failed, {counts['plain unclear']} ended the process or hung, " in table
    assert f"modelyard: {counts['ours right']} right, {counts['ours refused']} refused" in table
    assert f"Plain converters: {counts['plain right']} right" in table
    assert f"Right in both: {counts['both']}; only with modelyard: {counts['only ours']}; " in table
    assert f"only with the plain converter: {counts['only plain']};" in table
    facts = json.loads(_page.DATA.read_text("utf-8"))
    assert facts["counts"]["artefacts"] == counts["artefacts"]
    assert len(facts["cells"]) == sum(cell != "?" for row in rows for cell in row)


def test_a_table_of_made_up_cells() -> None:
    verdicts: dict[tuple[str, str], Any] = {
        ("ours", "saved_model"): "right", ("ours", "onnx"): "refused", ("ours", "tflite"): "unclear",
        ("plain", "saved_model"): "right", ("plain", "onnx"): "right", ("plain", "tflite"): "wrong",
    }  # fmt: skip
    cells = [
        Cell(kind="k", route=route, form=form, verdict=verdict, why="a | b")
        for (route, form), verdict in verdicts.items()
    ]
    text = _page.table(cells, {"k": {"theme": "t", "title": "T"}}, {"keras": "3", "tf_keras": ""}, "2026-01-02")
    assert rows_of(text) == [["right", "refused", "unclear", "right", "right", "wrong"]]
    assert "modelyard: 1 right, 1 refused with a reason, 1 unclear, 0 silently wrong." in text
    assert "only with the plain converter: 1; in neither: 1." in text
    assert "Measured on 2026-01-02 with keras 3." in text and "tf_keras" not in text
    assert "- `k`, ONNX: refused. a / b" in text


def test_results_keep_what_they_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{_page.START}\n{_page.END}\nafter\n")
    monkeypatch.setattr(_page, "PAGE", page)
    monkeypatch.setattr(_page, "DATA", tmp_path / "page.json")
    cells = [Cell(kind="k", route=route, form="onnx", verdict="right", why="") for route in ("ours", "plain")]
    kinds = {"k": {"theme": "t", "title": "T"}}
    _page.write(cells, kinds, {}, "2026-01-02", prints={("k", "ours", "onnx"): "abc"})
    found = _read(tmp_path / "none")
    assert {key: mark for key, (_, mark) in found.items()} == {
        ("k", "ours", "onnx"): "abc", ("k", "plain", "onnx"): "",
    }  # fmt: skip
    assert [Cell(**row) for row, _ in found.values()] == cells
