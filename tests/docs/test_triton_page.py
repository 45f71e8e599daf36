"""docs/migrating-from-triton.md: its commands and programs run on a repository as Triton has it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper, save

from modelyard.errors import ConfigurationError
from modelyard.serving import parse_flags
from modelyard.serving.config import FLAGS
from tests.support.pages import ROOT, blocks
from tests.support.server import serve

PAGE = "docs/migrating-from-triton.md"
TEXT = (ROOT / PAGE).read_text("utf-8")


def test_the_page_runs(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in "xy")
    two = helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])
    graph = helper.make_graph([helper.make_node("Mul", ["x", "two"], ["y"])], "scale", [x], [y], [two])
    (tmp_path / "models" / "scale" / "1").mkdir(parents=True)
    (tmp_path / "models" / "scale" / "config.pbtxt").write_text('platform: "onnxruntime_onnx" max_batch_size: 8')
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, tmp_path / "models" / "scale" / "1" / "model.onnx")
    start, asked = blocks(PAGE, "bash")
    (flag,) = (each for each in start.split() if each.startswith("--model_repository"))
    flags = [flag.replace('"$PWD', str(tmp_path)).replace('"', "")]
    with serve(None, model="scale", log_dir=tmp_path, flags=flags) as server:

        def run(*command: str) -> str:
            code = command[-1].replace("localhost:8000", f"127.0.0.1:{server.rest_port}")
            code = code.replace("localhost:8001", server.grpc_address)
            done = subprocess.run([*command[:-1], code], capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout

        said = run("bash", "-ec", asked)
        assert '"shape": [-1, 3]' in said and '"backend": "onnxruntime"' in said
        for name in re.findall(r"`(:\w+:serving:\w+)`", TEXT):
            assert f"# TYPE {name} " in said
        for program in blocks(PAGE, "python"):
            assert run(sys.executable, "-c", program).split() == ["[[2.", "4.", "6.]]"] * 2


def test_unknown_flags_are_answered_with_those_of_the_table() -> None:
    rows = re.findall(r"^\| ((?:`--[a-z-]+`(?:, )?)+) \| .*?`(--[a-z_]+)", TEXT, re.MULTILINE)
    pairs = [(flag, here) for flags, here in rows for flag in re.findall(r"--[a-z-]+", flags)]
    assert ("--http-port", "--rest_api_port") in pairs and len(pairs) == 22
    for flag, here in pairs:
        with pytest.raises(ConfigurationError, match=f"^Unknown argument {flag}. Did you mean {here}\\?$"):
            parse_flags([f"{flag}=1"])


def test_all_flags_of_a_manifest_are_answered_at_once() -> None:
    # What KServe's own runtime for Triton has.
    args = ["tritonserver", "--model-store=/mnt/models", "--grpc-port=9000", "--http-port", "8080", "--allow-http=true"]
    with pytest.raises(ConfigurationError) as caught:
        parse_flags(args)
    assert str(caught.value) == (
        "Unknown argument --model-store. Did you mean --model_repository? "
        "Unknown argument --grpc-port. Did you mean --port? "
        "Unknown argument --http-port. Did you mean --rest_api_port? "
        "Unknown argument --allow-http. See --help for the flags there are."
    )


def test_the_flags() -> None:
    named = set(re.findall(r"--([a-z]+_[a-z_]+)", TEXT))
    assert named <= {flag.name for flag in FLAGS} and len(named) > 5
