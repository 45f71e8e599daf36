"""One file for phones: what is in it, what it computes, and whether Google's own readers take it."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from PIL import Image

from modelyard.artifact import EncodedImageFunction, ModelVersion, Precision, SignatureFunction, TensorSpec
from modelyard.artifact.bundle import BundleOptions, write_bundle
from modelyard.artifact.bundle._graph import Graph
from modelyard.artifact.runtimes import TfliteModel
from modelyard.cli import main
from modelyard.errors import ConfigurationError, IntegrityError
from modelyard.export import ExportOptions, export

NAMES = ("red", "grün", "blue")
MEAN, STD = 110.5, 61.0
#: MediaPipe's classifier refuses what differs between the channels; the metadata can say it.
MEANS, STDS = (120.0, 110.5, 100.25), (60.0, 61.0, 62.5)
SIZE = 16


class Colours(tf.Module):
    """Which channel is the brightest: no training is needed to be right."""

    def __init__(self) -> None:
        super().__init__()
        self.model = keras.Sequential(
            [
                keras.Input((SIZE, SIZE, 3)),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(3, kernel_initializer=lambda shape, dtype: 3.0 * tf.eye(3)),
            ]
        )

    def predict(self, image: Any) -> dict[str, Any]:
        logits = self.model(image, training=False)
        class_id = tf.argmax(logits, -1, output_type=tf.int64)
        label = tf.gather(tf.constant(NAMES), class_id)
        return {"class_id": class_id, "label": label, "probabilities": tf.nn.softmax(logits)}


def _image_signature(compute: str, change: Any) -> EncodedImageFunction:
    return EncodedImageFunction(
        compute=compute, preprocess=lambda pixels: change(tf.image.resize(tf.cast(pixels, tf.float32), [SIZE, SIZE]))
    )


def _looped(x: Any) -> dict[str, Any]:
    return {"y": tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * x), (0, x))[1]}


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> ModelVersion:
    model = Colours()
    image = TensorSpec(name="image", dtype="float32", shape=(-1, SIZE, SIZE, 3))
    row = TensorSpec(name="x", dtype="float32", shape=(-1, 2))
    signatures: dict[str, Any] = {
        "serving_default": SignatureFunction(inputs=(image,), function=model.predict),
        "image_bytes": _image_signature("serving_default", lambda image: (image - MEAN) / STD),
        "channels": SignatureFunction(inputs=(image,), function=lambda image: {"y": tf.reduce_max(image, [1, 2])}),
        "channels_bytes": _image_signature("channels", lambda image: (image - MEANS) / STDS),
        "curved": SignatureFunction(inputs=(image,), function=lambda image: {"y": tf.reduce_mean(image, [1, 2])}),
        "curved_bytes": _image_signature("curved", lambda image: (image / 255) ** 2),
        "row": SignatureFunction(inputs=(row,), function=lambda x: {"y": tf.tile(x, [1, 2]), "z": x[:, 0] + 1}),
        "looped": SignatureFunction(inputs=(row,), function=_looped),
    }
    rng, count = np.random.default_rng(0), 40
    images = rng.normal(size=(count, SIZE, SIZE, 3)).astype(np.float32) + rng.normal(size=(count, 1, 1, 3)).astype("f")
    encoded = np.array([_png(rng.integers(0, 256, (SIZE, SIZE, 3))) for _ in range(count)], object)
    rows = rng.normal(size=(count, 2)).astype(np.float32)
    data = {
        **dict.fromkeys(("serving_default", "channels", "curved"), {"image": images}),
        **dict.fromkeys(("image_bytes", "channels_bytes", "curved_bytes"), {"image_bytes": encoded}),
        **dict.fromkeys(("row", "looped"), {"x": rows}),
    }
    options = ExportOptions(
        formats=("tflite",), precision=("float32", "float16"), latency_calls=20, measure_seconds=0.5, runtimes=(),
        isolate=False, min_examples=20,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("models") / "colours"
    return export(model, folder, signatures=signatures, data=data, options=options).version


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def _text(table: Any, slot: int) -> str:
    place = table.Offset(4 + 2 * slot)
    return table.String(table.Pos + place).decode() if place else ""


def _below(table: Any, slot: int) -> list[Any]:
    from flatbuffers.table import Table

    place = table.Offset(4 + 2 * slot)
    start = table.Vector(place)
    return [Table(table.Bytes, table.Indirect(start + 4 * at)) for at in range(table.VectorLen(place))]


def _metadata(path: Path) -> Any:
    """The root table of the metadata: its fields are numbered as in Google's schema."""
    from ai_edge_litert import schema_py_generated as schema
    from flatbuffers.table import Table

    model = schema.Model.GetRootAs(path.read_bytes())
    (entry,) = (
        each
        for each in (model.Metadata(index) for index in range(model.MetadataLength()))
        if each.Name() == b"TFLITE_METADATA"
    )
    content = model.Buffers(entry.Buffer()).DataAsNumpy().tobytes()
    assert content[4:8] == b"M001"
    return Table(content, int.from_bytes(content[:4], "little"))


def test_what_is_in_it(version: ModelVersion, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "colours.tflite"
    assert main(["repo", "bundle", str(version.path.parent), "--output", str(path)]) == 0
    said = capsys.readouterr().out
    assert f"colours version 1: {path}, " in said
    assert "image [16, 16, 3], (pixel - 110.5) / 61; probabilities (3 labels)" in said
    assert path.stat().st_size < (version.path / "model.tflite").stat().st_size
    with zipfile.ZipFile(path) as archive:
        assert archive.read("labels.txt").decode().splitlines() == list(NAMES)
        assert {each.compress_type for each in archive.infolist()} == {zipfile.ZIP_STORED}
    root = _metadata(path)
    assert [_text(root, slot) for slot in (0, 2, 7)] == ["colours", "1", "1.0.0"]
    (graph,) = _below(root, 3)
    assert [_text(each, 0) for each in _below(graph, 2)] == ["image"]
    (output,) = _below(graph, 3)
    assert (_text(output, 0), [_text(each, 0) for each in _below(output, 6)]) == ("probabilities", ["labels.txt"])
    interpreter = Interpreter(model_path=str(path))
    assert interpreter.get_signature_list() == {"serving_default": {"inputs": ["image"], "outputs": ["probabilities"]}}


def test_it_computes_the_same(version: ModelVersion, tmp_path: Path) -> None:
    images = np.random.default_rng(1).normal(size=(5, SIZE, SIZE, 3)).astype(np.float32)
    files: tuple[tuple[Precision, str], ...] = (("float32", "model.tflite"), ("float16", "model.float16.tflite"))
    for precision, name in files:
        path = write_bundle(version, tmp_path / name, BundleOptions(precision=precision)).path
        before, after = (
            TfliteModel(Interpreter(model_content=content), content).run("serving_default", {"image": images})
            for content in ((version.path / name).read_bytes(), path.read_bytes())
        )
        assert after.keys() == {"probabilities"}
        np.testing.assert_array_equal(after["probabilities"], before["probabilities"])
    assert write_bundle(version, tmp_path / "again").path.read_bytes() == (tmp_path / "model.tflite").read_bytes()


def test_what_is_said(version: ModelVersion, tmp_path: Path) -> None:
    path = tmp_path / "x.tflite"
    bundle = write_bundle(version, path, BundleOptions(signature="row", outputs=["y"], labels=["a", "b", "c", "d"]))
    assert (bundle.outputs, bundle.labels, bundle.image) == (("y",), ("a", "b", "c", "d"), None)
    bundle = write_bundle(version, path, BundleOptions(signature="row"))
    assert (bundle.outputs, bundle.labels, zipfile.is_zipfile(path)) == (("y", "z"), (), False)
    bundle = write_bundle(version, path, BundleOptions(signature="curved_bytes", mean=[1], std=[2]))
    assert (bundle.image, bundle.mean, bundle.std) == ((SIZE, SIZE, 3), (1, 1, 1), (2, 2, 2))
    bundle = write_bundle(version, path, BundleOptions(signature="channels"))
    assert (bundle.mean, bundle.std) == (MEANS, STDS)
    assert "(pixel - 120, 110.5, 100.25) / 60, 61, 62.5; y" in str(bundle)
    bundle = write_bundle(version, path, BundleOptions(labels=["x", "y", "z"], outputs=["class_id", "probabilities"]))
    assert (bundle.outputs, bundle.labels) == (("class_id", "probabilities"), ("x", "y", "z"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"signature": "curved"}, r"'curved_bytes.preprocess' makes something else .* mean \(--mean\) and std"),
        ({"signature": "looped"}, "has WHILE, which call other graphs"),
        ({"signature": "none"}, "no signature 'none'; it has channels, "),
        ({"precision": "int8"}, "no format tflite.int8; it has tflite, tflite.float16. .*--precision int8"),
        ({"outputs": ["nothing"]}, r"outputs \(--outputs\) is \['nothing'\]; expected some of class_id, label"),
        ({"labels": ["a"]}, r"labels \(--labels\) are 1; .* The outputs have 3 \(probabilities\)"),
        ({"mean": [1, 2], "std": [1]}, r"has 2 numbers; expected 1, or 3"),
        ({"signature": "row", "mean": [1], "std": [1]}, r"'x' has the shape \[-1, 2\]; expected \[-1, height, width"),
    ],
)
def test_what_cannot_be(version: ModelVersion, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        write_bundle(version, tmp_path / "x.tflite", BundleOptions(**options))
    assert [*tmp_path.iterdir()] == []


def test_options_that_are_none() -> None:
    with pytest.raises(ConfigurationError, match="belong together"):
        BundleOptions(mean=[1])
    with pytest.raises(ConfigurationError, match=r"std \(--std\) is \[0\]; expected no zero"):
        BundleOptions(mean=[1], std=[0])


def test_a_damaged_version(version: ModelVersion, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "colours" / "1"
    copy.mkdir(parents=True)
    (copy / "manifest.json").write_bytes((version.path / "manifest.json").read_bytes())
    (copy / "model.tflite").write_bytes((version.path / "model.tflite").read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError, match="has sha256"):
        write_bundle(ModelVersion(number=1, path=copy), tmp_path / "x.tflite")
    assert main(["repo", "bundle", str(copy.parent), "--output", "x", "--labels", str(tmp_path / "no")]) == 2
    assert "--labels" in capsys.readouterr().err


def test_operators_of_files_of_before_tensorflow_2_4(version: ModelVersion) -> None:
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf((version.path / "model.tflite").read_bytes(), 0)
    for code in model.operatorCodes:
        # The newer field had yet to come.
        code.deprecatedBuiltinCode, code.builtinCode = min(code.builtinCode, 127), 0
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), b"TFL3")
    with pytest.raises(ConfigurationError, match="'looped' has WHILE, which call"):
        Graph(bytes(builder.Output()), "looped")


#: The wheels of mediapipe 1.2.3 lack the native module that its reader imports, and does not use.
_GOOGLE = """
import json, sys, types

for name in ("mediapipe.tasks.cc", "mediapipe.tasks.cc.metadata", "mediapipe.tasks.cc.metadata.python"):
    sys.modules.setdefault(name, types.ModuleType(name))
sys.modules["mediapipe.tasks.cc.metadata.python"]._pywrap_metadata_version = None
import mediapipe as mp
import numpy as np
from mediapipe.tasks.python import BaseOptions, vision
from mediapipe.tasks.python.metadata.metadata import MetadataDisplayer

reader = MetadataDisplayer.with_model_file(sys.argv[1])
options = vision.ImageClassifierOptions(base_options=BaseOptions(model_asset_path=sys.argv[1]))
answers = []
with vision.ImageClassifier.create_from_options(options) as classifier:
    for channel in range(3):
        pixels = np.full((40, 50, 3), 90, np.uint8)
        pixels[..., channel] = 200
        (head,) = classifier.classify(mp.Image(image_format=mp.ImageFormat.SRGB, data=pixels)).classifications
        answers.append([head.head_name, {each.category_name: each.score for each in head.categories}])
said = {"metadata": json.loads(reader.get_metadata_json()), "files": reader.get_packed_associated_file_list()}
print(json.dumps(said | {"answers": answers}))
"""


def test_google_s_reader(version: ModelVersion, tmp_path: Path) -> None:
    """Google's reader of metadata, and MediaPipe's classifier, which makes the images ready by it."""
    python = os.environ.get("MODELYARD_MEDIAPIPE")
    if python is None and importlib.util.find_spec("mediapipe") is None:
        pytest.skip("mediapipe is not installed; MODELYARD_MEDIAPIPE may name a Python that has it")
    path = write_bundle(version, tmp_path / "colours.tflite").path
    command = [python or sys.executable, "-c", _GOOGLE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["files"] == ["labels.txt"]
    metadata = said["metadata"]
    assert (metadata["name"], metadata["version"]) == ("colours", "1")
    (graph,) = metadata["subgraph_metadata"]
    (image,), (scores,) = graph["input_tensor_metadata"], graph["output_tensor_metadata"]
    assert image["content"]["content_properties"] == {
        "color_space": "RGB",
        "default_size": {"width": SIZE, "height": SIZE},
    }
    assert image["process_units"] == [
        {"options_type": "NormalizationOptions", "options": {"mean": [MEAN] * 3, "std": [STD] * 3}}
    ]
    assert scores["associated_files"] == [{"name": "labels.txt", "type": "TENSOR_AXIS_LABELS"}]
    # The same images by the version's own preprocess and graph.
    content = (version.path / "model.tflite").read_bytes()
    model = TfliteModel(Interpreter(model_content=content), content)
    for channel, (head, found) in enumerate(said["answers"]):
        pixels = np.full((40, 50, 3), 90, np.uint8)
        pixels[..., channel] = 200
        (ready,) = model.run("image_bytes.preprocess", {"pixels": pixels}).values()
        expected = model.run("serving_default", {"image": ready[np.newaxis]})["probabilities"][0]
        assert head == "probabilities" and max(found, key=found.get) == NAMES[channel]
        np.testing.assert_allclose([found[name] for name in NAMES], expected, atol=1e-5)
