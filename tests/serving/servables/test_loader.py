from __future__ import annotations

import logging
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from modelyard.artifact import (
    DEFAULT_SIGNATURE,
    FormatEntry,
    Latency,
    Manifest,
    RuntimeChoice,
    Signature,
    Source,
    TensorSpec,
    VerifyReport,
    hash_files,
    publish,
    staging,
)
from modelyard.errors import IntegrityError, LoadError, ManifestError, MissingDependencyError
from modelyard.serving import LoadOptions, load_servable
from modelyard.serving.backends import RUNTIMES, available_runtimes

_MODULES = {
    "onnxruntime": ("onnxruntime",),
    "litert": ("ai_edge_litert", "ai_edge_litert.interpreter"),
    "openvino": ("openvino",),
    "tensorflow": ("tensorflow",),
}


@pytest.fixture(scope="module")
def all_formats(session_dir: Path) -> Path:
    """y = 0.5 x + 2 as a SavedModel, TFLite and ONNX, with no manifest."""
    import tensorflow as tf

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.float32, name="x")])
        def predict(self, x):
            return {"y": 0.5 * x + 2.0}

    folder = session_dir / "all-formats"
    model = Model()
    tf.saved_model.save(model, str(folder), signatures={DEFAULT_SIGNATURE: model.predict})
    lite = tf.lite.TFLiteConverter.from_saved_model(str(folder)).convert()
    (folder / "model.tflite").write_bytes(lite)
    nodes = [
        helper.make_node("Mul", ["x", "half"], ["scaled"]),
        helper.make_node("Add", ["scaled", "two"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "half_plus_two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
        [
            helper.make_tensor("half", TensorProto.FLOAT, [], [0.5]),
            helper.make_tensor("two", TensorProto.FLOAT, [], [2.0]),
        ],
    )
    (folder / "onnx").mkdir()
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10),
        str(folder / "onnx" / f"{DEFAULT_SIGNATURE}.onnx"),
    )
    return folder


@pytest.fixture
def version(all_formats: Path, tmp_path: Path):
    """Makes a version directory of some of the files, with the manifest's choice where there is to be one.

    What was measured then says that bfloat16 with two threads is best, and that batches gain nothing.
    """

    def make(files: str, *, chosen: str | None = None) -> Path:
        def copy(target: Path) -> None:
            if "o" in files:
                shutil.copytree(all_formats / "onnx", target / "onnx")
            if "l" in files:
                shutil.copy(all_formats / "model.tflite", target)
            if "s" in files:
                shutil.copy(all_formats / "saved_model.pb", target)
                shutil.copytree(all_formats / "variables", target / "variables")

        if chosen is None:
            plain = tmp_path / "plain" / "1"
            plain.mkdir(parents=True)
            copy(plain)
            return plain
        with staging(tmp_path / "half") as staged:
            copy(staged)
            spec = TensorSpec(name="x", dtype="float32", shape=(-1, 1))
            signature = Signature(inputs=(spec,), outputs=(replace(spec, name="y"),), compute=DEFAULT_SIGNATURE)
            report = VerifyReport(examples=1, batch_sizes=(1, 2), max_abs_error=0.0, max_rel_error=0.0)
            entries = {
                key: FormatEntry(path=".", precision=precision, converter={}, runtime={chosen: "1"}, verify=report)
                for key, precision in (("onnx", "float32"), ("onnx.bfloat16", "bfloat16"))
            }
            best: dict[str, Any] = {"format": "onnx", "runtime": chosen, "precision": "bfloat16", "threads": 2}
            latency = tuple(
                Latency(**best, signature=DEFAULT_SIGNATURE, batch_size=rows, p50_us=1.0, examples_per_s=rate)
                for rows, rate in ((1, 1000.0), (32, 900.0))
            )
            hashed = hash_files(staged)
            published = publish(
                staged,
                tmp_path / "half",
                lambda number: Manifest(
                    model="half",
                    version=number,
                    created="2026-01-01T00:00:00Z",
                    source=Source(),
                    signatures={DEFAULT_SIGNATURE: signature},
                    files=hashed,
                    formats=entries,
                    runtime=chosen,
                    latency=latency,
                    choices=(RuntimeChoice(**best, p50_us=1.0, speedup=2.0),),
                ),
            )
        return published.path

    return make


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("", ()),
        ("o", ("onnxruntime", "openvino")),
        ("l", ("litert",)),
        ("s", ("tensorflow", "openvino")),
        ("ols", ("onnxruntime", "litert", "tensorflow", "openvino")),
    ],
)
def test_files_say_which_runtimes_there_are(version, files: str, expected: tuple[str, ...]) -> None:
    assert available_runtimes(version(files)) == expected
    assert set(expected) <= set(RUNTIMES)


@pytest.mark.parametrize(
    ("files", "chosen", "asked", "prefer_tflite", "absent", "expected"),
    [
        # Nothing asked for: the first that is installed and has a file; openvino where no other is.
        ("ols", None, None, False, (), "onnxruntime"),
        ("ols", None, None, False, ("onnxruntime",), "litert"),
        ("ols", None, None, False, ("onnxruntime", "litert"), "tensorflow"),
        ("s", None, None, False, (), "tensorflow"),
        ("s", None, None, False, ("tensorflow",), "openvino"),
        ("s", "tensorflow", None, False, ("tensorflow",), "openvino"),
        ("o", None, None, False, ("onnxruntime",), "openvino"),
        ("l", None, None, False, (), "litert"),
        # The flag decides.
        ("ols", None, "litert", False, (), "litert"),
        ("ols", None, "tensorflow", False, (), "tensorflow"),
        ("ols", None, "openvino", False, (), "openvino"),
        ("s", None, "openvino", False, ("tensorflow",), "openvino"),
        ("ols", "litert", "openvino", True, (), "openvino"),
        ("ols", None, None, True, (), "litert"),
        ("os", None, None, True, (), "onnxruntime"),
        # The manifest's choice.
        ("ols", "litert", None, False, (), "litert"),
        ("ols", "openvino", None, False, (), "openvino"),
        ("s", "openvino", None, False, (), "openvino"),
        ("ols", "openvino", None, True, (), "litert"),
        ("o", "tensorflow", None, False, (), "onnxruntime"),
    ],
)
def test_the_choice_of_a_runtime(
    version, monkeypatch, files: str, chosen: str, asked, prefer_tflite: bool, absent, expected: str
) -> None:
    for runtime in absent:
        for module in _MODULES[runtime]:
            monkeypatch.setitem(sys.modules, module, None)
    options = LoadOptions(runtime=asked, prefer_tflite=prefer_tflite)
    servable = load_servable("half", 1, version(files, chosen=chosen), options)
    assert servable.backend.name == expected
    x = np.array([[1], [3]], np.float32)
    values = servable.run(servable.signature(DEFAULT_SIGNATURE), {"x": x}, ["y"])
    assert values["y"].tolist() == [[2.5], [3.5]]
    servable.close()


def test_a_choice_of_the_manifest_that_is_not_installed_is_replaced_with_a_warning(
    version, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with caplog.at_level(logging.WARNING, logger="modelyard.serving"):
        servable = load_servable("half", 1, version("ol", chosen="openvino"), LoadOptions())
    assert servable.backend.name == "onnxruntime"
    assert "the manifest's choice is openvino, which is not installed; onnxruntime serves it" in caplog.text
    servable.close()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtime_that_was_asked_for_is_never_replaced(version, monkeypatch, runtime) -> None:
    for module in _MODULES[runtime]:
        monkeypatch.setitem(sys.modules, module, None)
    extra = runtime if runtime in ("openvino", "tensorflow") else "serving"
    with pytest.raises(MissingDependencyError, match=rf"pip install 'modelyard\[{extra}\]'"):
        load_servable("half", 1, version("ols"), LoadOptions(runtime=runtime))


@pytest.mark.parametrize(("files", "asked"), [("l", "openvino"), ("o", "litert"), ("l", "tensorflow")])
def test_a_runtime_without_a_file_is_refused(version, files: str, asked) -> None:
    with pytest.raises(LoadError, match=f"no file for the runtime '{asked}'"):
        load_servable("half", 1, version(files), LoadOptions(runtime=asked))


def test_a_device_decides_on_the_runtime(version) -> None:
    path = version("ols")
    servable = load_servable("half", 1, path, LoadOptions(device="openvino:CPU"))
    assert servable.backend.name == "openvino"
    servable.close()
    with pytest.raises(LoadError, match="computed on cuda, which is for onnxruntime: the runtime 'litert'"):
        load_servable("half", 1, path, LoadOptions(device="cuda", runtime="litert"))


def test_what_was_measured_on_a_cpu_is_not_for_another_device(version, caplog: pytest.LogCaptureFixture) -> None:
    path = version("o", chosen="openvino")
    found = []
    for device in ("cpu", "openvino:CPU"):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="modelyard.serving"):
            servable = load_servable("half", 1, path, LoadOptions(device=device, cpus=2))
        found.append((servable.gainless, caplog.messages[0].removeprefix(f"{path}: ")))
        servable.close()
    assert found == [
        (frozenset({DEFAULT_SIGNATURE}), "onnx.bfloat16 with openvino, 2 thread(s)"),
        (frozenset(), "onnx with openvino on openvino:CPU, 1 thread(s)"),
    ]


def test_an_empty_directory_is_refused(version) -> None:
    path = version("")
    with pytest.raises(LoadError, match="holds no model: it has nothing; expected saved_model.pb"):
        load_servable("half", 1, path, LoadOptions())
    for name in ("model.plan", "model.py", "a.txt", "b.txt"):
        (path / name).touch()
    with pytest.raises(LoadError, match="it has a.txt, b.txt, model.plan, ...; expected"):
        load_servable("half", 1, path, LoadOptions())


def test_where_nothing_is_installed_every_way_out_is_named(version, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setitem(sys.modules, "openvino", None)
    path = version("s")
    for runtime in (None, "tensorflow"):
        with pytest.raises(MissingDependencyError) as caught:
            load_servable("half", 1, path, LoadOptions(runtime=runtime))
        assert caught.value.message == (
            f"Serving a SavedModel from {path} with tensorflow needs the package 'tensorflow', which is not installed. "
            "Install it with: pip install 'modelyard[tensorflow]'; or serve it with OpenVINO (pip install "
            "'modelyard[openvino]', and --runtime=openvino); or export it with modelyard export, to ONNX and TFLite "
            "files that need neither."
        )
        assert caught.value.extra == "tensorflow"


def test_a_runtime_that_is_not_installed_claims_nothing_about_files_that_are_there(version, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(MissingDependencyError, match="without that, onnxruntime or litert or openvino can serve it"):
        load_servable("half", 1, version("ols"), LoadOptions(runtime="tensorflow"))


def test_a_damaged_file_is_found_before_it_is_loaded(version) -> None:
    path = version("ol", chosen="onnxruntime")
    with (path / "model.tflite").open("ab") as file:
        file.write(b"x")
    with pytest.raises(IntegrityError, match=r"model\.tflite"):
        load_servable("half", 1, path, LoadOptions())


def test_a_manifest_that_is_not_one_is_refused(version) -> None:
    path = version("o")
    (path / "manifest.json").write_text("{}")
    with pytest.raises(ManifestError):
        load_servable("half", 1, path, LoadOptions())


def test_openvino_offers_and_describes_only_what_it_can_read(tmp_path: Path) -> None:
    from tests.support.saved_models import save_tf1_half_plus_two

    save_tf1_half_plus_two(tmp_path / "1")
    servable = load_servable("half", 1, tmp_path / "1", LoadOptions(runtime="openvino"))
    assert list(servable.signatures) == list(servable.definitions) == [DEFAULT_SIGNATURE]
    assert servable.definitions[DEFAULT_SIGNATURE].inputs["x"].name == "x:0"
    servable.close()
