"""What an export converted before it was stopped is taken up by the next one, and verified as if it were new."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import onnx
import pytest
import tensorflow as tf
from onnx import numpy_helper

from modelyard import cli
from modelyard.artifact import SignatureFunction, Source, TensorSpec, VerificationData, verify_version
from modelyard.errors import ConversionError, PublishError, VerificationError
from modelyard.export import ExportEvent, ExportOptions, ExportReport, export


def repo(arguments: list[str]) -> int:
    return cli.main(["repo", *arguments])


OPTIONS = ExportOptions(formats=("saved_model", "onnx", "tflite"), min_examples=16, latency_calls=10)
SPEC = TensorSpec(name="x", dtype="float32", shape=(-1, 3))


@pytest.fixture(scope="module")
def model() -> tf.Module:
    keras.utils.set_random_seed(1)
    module = tf.Module()
    module.layer = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    return module


def run(model: tf.Module, folder: Path, options: ExportOptions, stop_at: str = "", *, seed: int = 0) -> ExportReport:
    def progress(event: ExportEvent) -> None:
        if event.stage == stop_at:
            raise KeyboardInterrupt

    examples = np.random.default_rng(seed).random((16, 3), np.float32)
    function = SignatureFunction(inputs=(SPEC,), function=lambda x: {"y": model.layer(x)})
    return export(
        model,
        folder,
        data=VerificationData(inputs={"serving_default": {"x": examples}}),
        signatures={"serving_default": function},
        source=Source(),
        options=options,
        progress=progress,
    )


def test_a_stopped_export_goes_on(tmp_path: Path, model: tf.Module) -> None:
    # A simplified graph that is wrong would be made again without onnxslim.
    options, folder = replace(OPTIONS, stage_dir=tmp_path / "stages", simplify=False), tmp_path / "m"
    with pytest.raises(KeyboardInterrupt):
        run(model, folder, options, stop_at="convert tflite")
    assert not list(folder.iterdir())
    (kept,) = (tmp_path / "stages").iterdir()
    assert {path.name for path in kept.iterdir()} == {"onnx"}

    # Another graph is put in the place of what was kept: it is taken up, and the verification finds it.
    graph = kept / "onnx" / "files" / "onnx" / "serving_default.onnx"
    content = onnx.load(graph)
    for each in content.graph.initializer:
        if each.data_type == onnx.TensorProto.FLOAT:
            each.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(each) + 1, each.name))
    onnx.save(content, graph)
    digest = hashlib.sha256(graph.read_bytes()).hexdigest()
    (kept / "onnx" / "done.json").write_text(json.dumps({"onnx/serving_default.onnx": digest}))
    with pytest.raises(VerificationError, match="Format onnx"):
        run(model, folder, options)

    # What was damaged meanwhile is converted again, and the rest is done.
    graph.write_bytes(b"damaged")
    report = run(model, folder, options)
    assert set(report.manifest.formats) >= {"saved_model", "onnx", "tflite"}
    verify_version(report.version)
    assert (report.version.path / "onnx" / "serving_default.onnx").read_bytes() == graph.read_bytes()

    # Another weight is another model.
    variable = model.layer.weights[0]
    variable.assign(variable * 2)
    assert run(model, folder, options).version.number == 2
    assert len(list((tmp_path / "stages").iterdir())) == 2


def test_int8_is_made_again_of_other_examples(tmp_path: Path, model: tf.Module) -> None:
    options = replace(OPTIONS, formats=("onnx",), precision=("float32", "int8"))
    files, stages = [], tmp_path / "stages"
    for seed in (0, 0, 1):
        report = run(model, tmp_path / "m", replace(options, stage_dir=stages), seed=seed)
        files.append((report.version.path / "onnx" / "int8" / "serving_default.onnx").read_bytes())
    assert files[0] == files[1] != files[2]
    assert len(list(stages.iterdir())) == 2


def test_a_folder_that_cannot_be_written(tmp_path: Path, model: tf.Module) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PublishError, match="Conversions cannot be kept"):
        run(model, tmp_path / "m", replace(OPTIONS, stage_dir=tmp_path / "file"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_disk_that_is_full(tmp_path: Path, model: tf.Module) -> None:
    """On a file system with room for one version and not for two."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no mounting here: {mounted.stderr.decode()}")
    try:
        first = run(model, disk / "m", OPTIONS)
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        with pytest.raises((PublishError, ConversionError), match="No space left on device"):
            run(model, disk / "m", OPTIONS)
        assert [path.name for path in (disk / "m").iterdir()] == ["1"]
        verify_version(first.version)
        filler.unlink()
        assert run(model, disk / "m", OPTIONS).version.number == 2
        assert repo(["verify", str(disk)]) == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)
