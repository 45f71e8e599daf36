"""export() of live models from end to end: what is published, and that nothing is where it must not be."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from modelyard.artifact import (
    STAGING_PREFIX,
    ImageDecode,
    SignatureFunction,
    Source,
    TensorSpec,
    VerificationData,
    json_schema,
    list_versions,
    read_manifest,
    verify_files,
)
from modelyard.errors import ConversionError, ManifestError, ModelyardError, PublishError, VerificationError
from modelyard.export import ExportEvent, ExportReport, Format, export
from modelyard.export.runtimes import rank_runtimes, thread_counts
from modelyard.serving import LoadOptions, load_servable
from modelyard.serving.backends import Runtime
from tests.export.conftest import COUNT, NAMES, OPTIONS, Classifier, Signatures, make_data, make_signatures

SOURCE = Source(task="toy", git_commit="abc", data="random", config={"epochs": 0}, metrics={"accuracy": 0.5})


@pytest.fixture(scope="module")
def events() -> list[ExportEvent]:
    return []


@pytest.fixture(scope="module")
def report(
    classifier: Classifier,
    signatures: Signatures,
    data: VerificationData,
    events: list[ExportEvent],
    tmp_path_factory: pytest.TempPathFactory,
) -> ExportReport:
    model_dir = tmp_path_factory.mktemp("repository") / "toy"
    # The number of calls ends a measurement here. On a busy machine the time would, before the large batches.
    options = replace(OPTIONS, measure_seconds=4.0)
    return export(
        classifier, model_dir, data=data, signatures=signatures, source=SOURCE, options=options, progress=events.append
    )


def test_the_version_has_the_layout_of_the_design(report: ExportReport) -> None:
    root = report.version.path
    assert (root.parent.name, root.name, report.version.number) == ("toy", "1", 1)
    assert sorted(path.name for path in root.parent.iterdir()) == ["1"]
    files = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert files == {
        "assets.extra/tf_serving_warmup_requests",
        "saved_model.pb",
        "fingerprint.pb",
        "variables/variables.index",
        "variables/variables.data-00000-of-00001",
        "onnx/serving_default.onnx",
        "onnx/embed.onnx",
        "onnx/image_bytes.preprocess.onnx",
        "model.tflite",
        "manifest.json",
        "report.html",
    }


def test_the_manifest_says_what_was_done(report: ExportReport) -> None:
    manifest = read_manifest(report.version.path)
    assert manifest == report.manifest
    jsonschema.Draft202012Validator(json_schema()).validate(json.loads(manifest.to_json()))
    verify_files(report.version.path, manifest)
    assert (manifest.model, manifest.version, manifest.source) == ("toy", 1, SOURCE)
    assert set(manifest.formats) == {"saved_model", "onnx", "tflite"}
    assert {entry.path for entry in manifest.formats.values()} == {".", "onnx", "model.tflite"}
    assert {name: set(entry.runtime) for name, entry in manifest.formats.items()} == {
        "saved_model": {"tensorflow"},
        "onnx": {"onnxruntime"},
        "tflite": {"ai-edge-litert"},
    }
    assert {entry.path for entry in manifest.files} >= {"report.html", "model.tflite", "saved_model.pb"}
    encoded = manifest.signatures["image_bytes"]
    assert (encoded.compute, encoded.preprocess) == ("serving_default", "image_bytes.preprocess")
    assert isinstance(encoded.decode, ImageDecode) and encoded.decode.channels == 3
    assert {spec.name: (spec.dtype, spec.shape) for spec in encoded.outputs} == {
        "class_id": ("int64", (-1,)),
        "label": ("string", (-1,)),
        "probabilities": ("float32", (-1, 3)),
    }


def test_latency_of_every_runtime_and_the_choice(report: ExportReport) -> None:
    rows = report.manifest.latency
    assert {(each.format, each.runtime, each.signature) for each in rows} == {
        (format, runtime, name)
        for format, runtime in (("saved_model", "tensorflow"), ("onnx", "onnxruntime"), ("tflite", "litert"))
        for name in ("serving_default", "embed", "image_bytes")
    }
    main = [each for each in rows if each.signature == "serving_default"]
    assert {each.batch_size for each in main} == {1, 32}
    counts = set(thread_counts(len(os.sched_getaffinity(0))))
    assert {each.threads for each in main if each.runtime == "litert"} == counts
    assert all(each.p50_us > 0 and each.examples_per_s and each.examples_per_s > 0 for each in rows)
    assert report.manifest.choices == rank_runtimes(rows, signature="serving_default")
    assert [each.runtime for each in report.manifest.choices][-1] == "tensorflow"
    assert report.manifest.runtime == report.manifest.choices[0].runtime


def test_progress_is_told(report: ExportReport, events: list[ExportEvent]) -> None:
    stages = list(dict.fromkeys(event.stage for event in events))
    assert stages[:3] == ["trace", "reference", "convert saved_model"]
    assert stages[-2:] == ["measure", "publish"]
    for stage in stages:
        done = [(event.done, event.total) for event in events if event.stage == stage]
        assert done == sorted(done) and done[-1][0] == done[-1][1]


def test_each_file_answers_in_its_own_runtime(report: ExportReport, data: VerificationData) -> None:
    """With the runtimes' own interfaces, as a foreign server would use the files."""
    images = data.inputs["serving_default"]["image"]
    root = report.version.path
    session = onnxruntime.InferenceSession(str(root / "onnx" / "serving_default.onnx"))
    (probabilities,) = session.run(["probabilities"], {"image": images[:5]})
    runner = Interpreter(str(root / "model.tflite")).get_signature_runner("serving_default")
    np.testing.assert_allclose(runner(image=images[:5])["probabilities"], probabilities, atol=1e-5)
    loaded = tf.saved_model.load(str(root))
    answer = loaded.signatures["serving_default"](image=tf.constant(images[:5]))
    np.testing.assert_allclose(answer["probabilities"].numpy(), probabilities, atol=1e-5)
    encoded = data.inputs["image_bytes"]["image_bytes"]
    for count in (0, 1, 3):
        answer = loaded.signatures["image_bytes"](image_bytes=tf.constant(encoded[:count].tolist(), tf.string, [count]))
        assert answer["label"].shape == (count,)
        assert {value.decode() for value in answer["label"].numpy()} <= set(NAMES)


def export_again(report: ExportReport, root: Any, signatures: Any, data: VerificationData, **changes: Any) -> Any:
    options = replace(OPTIONS, **changes)
    return export(root, report.version.path.parent, data=data, signatures=signatures, source=SOURCE, options=options)


def unconvertible(x: Any) -> dict[str, Any]:
    # The incomplete gamma function has neither an ONNX nor a TFLite translation.
    return {"y": tf.math.igamma(x + 1.0, x)}


PLAIN = {"f": SignatureFunction(inputs=(TensorSpec(name="x", dtype="float32", shape=(-1, 2)),), function=unconvertible)}
PLAIN_DATA = VerificationData(inputs={"f": {"x": np.random.default_rng(0).random((COUNT, 2), np.float32)}})


@pytest.mark.parametrize("format", ["onnx", "tflite"])
def test_a_format_that_fails_publishes_nothing(tmp_path: Path, format: Format) -> None:
    with pytest.raises((ConversionError, VerificationError), match=rf"(?s)Format {format}, graphs? '?f'?.*Igamma"):
        export(
            tf.Module(),
            tmp_path / "m",
            data=PLAIN_DATA,
            signatures=PLAIN,
            source=SOURCE,
            options=replace(OPTIONS, formats=("saved_model", format)),
        )
    assert list((tmp_path / "m").iterdir()) == []


@pytest.mark.parametrize("runtime", ["onnxruntime", "litert", "openvino", "tensorflow"])
def test_no_rows_are_answered_in_the_shapes_of_the_signature(report: ExportReport, runtime: Runtime) -> None:
    servable = load_servable("toy", 1, report.version.path, LoadOptions(runtime=runtime))
    assert set(servable.signatures) == {"serving_default", "image_bytes", "embed"}
    for signature in servable.signatures.values():
        inputs = {
            spec.name: np.zeros((0, *(spec.shape or ())[1:]), object if spec.dtype == "string" else spec.dtype)
            for spec in signature.inputs
        }
        answer = servable.run(signature, inputs, [spec.name for spec in signature.outputs])
        shapes = {"probabilities": (0, 3), "class_id": (0,), "label": (0,), "embedding": (0, 4)}
        assert {name: array.shape for name, array in answer.items()} == {name: shapes[name] for name in answer}


def test_optional_formats_that_fail_are_left_out_and_reported(tmp_path: Path) -> None:
    options = replace(OPTIONS, optional=("onnx", "tflite"))
    report = export(tf.Module(), tmp_path / "m", data=PLAIN_DATA, signatures=PLAIN, source=SOURCE, options=options)
    assert set(report.skipped) == {"onnx", "tflite"}
    assert set(report.manifest.formats) == set(report.checks) == {"saved_model"}
    assert report.manifest.runtime == "tensorflow"
    names = {path.name for path in report.version.path.iterdir()}
    assert not names & {"onnx", "model.tflite"}
    page = report.report_html.read_text("utf-8")
    assert "onnx was left out." in page and "Igamma" in page


def test_a_verification_failure_publishes_nothing(
    report: ExportReport, classifier: Classifier, signatures: Signatures, data: VerificationData
) -> None:
    with pytest.raises(VerificationError, match="Format onnx, signature .* absolute error"):
        export_again(report, classifier, signatures, data, max_abs_error=0.0, formats=("saved_model", "onnx"))
    assert [path.name for path in report.version.path.parent.iterdir()] == ["1"]


def test_a_source_that_is_no_json_publishes_nothing(
    classifier: Classifier, signatures: Signatures, data: VerificationData, tmp_path: Path
) -> None:
    with pytest.raises(ManifestError, match="source.config"):
        export(
            classifier,
            tmp_path / "m",
            data=data,
            signatures=signatures,
            source=Source(metrics={"loss": float("nan")}),
            options=replace(OPTIONS, formats=("saved_model",)),
        )
    assert list((tmp_path / "m").iterdir()) == []


def test_a_variable_that_root_does_not_hold(tmp_path: Path) -> None:
    variable = tf.Variable([1.0, 2.0])
    signatures = {"f": replace(PLAIN["f"], function=lambda x: {"y": x * variable})}
    with pytest.raises(ConversionError, match="(?s)Format saved_model.*root does not hold"):
        export(tf.Module(), tmp_path / "m", data=PLAIN_DATA, signatures=signatures, source=SOURCE, options=OPTIONS)
    assert list((tmp_path / "m").iterdir()) == []


def test_a_repository_that_cannot_be_written(
    classifier: Classifier, signatures: Signatures, data: VerificationData, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(PublishError, match="Cannot write below"):
        export(classifier, tmp_path / "file" / "m", data=data, signatures=signatures, source=SOURCE, options=OPTIONS)


@pytest.fixture(scope="module")
def elsewhere() -> multiprocessing.context.ForkServerContext:
    """Processes of their own, forked from one that has imported what they need and has done nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def export_line(
    model_dir: Path, formats: tuple[Format, ...], progress: Callable[[ExportEvent], None] = lambda _: None
) -> None:
    """Runs in processes of their own, where each traces a model of its own."""
    module = tf.Module()
    module.factor = tf.Variable(2.0)
    export(
        module,
        model_dir,
        data=PLAIN_DATA,
        signatures={"f": replace(PLAIN["f"], function=lambda x: {"y": x * module.factor})},
        source=SOURCE,
        options=replace(OPTIONS, formats=formats),
        progress=progress,
    )


def test_two_exporters_at_once_both_publish(elsewhere: Any, tmp_path: Path) -> None:
    arguments = (tmp_path / "toy", ("saved_model",))
    workers = [elsewhere.Process(target=export_line, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(600)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert sorted(path.name for path in (tmp_path / "toy").iterdir()) == ["1", "2"]
    for version in list_versions(tmp_path / "toy"):
        manifest = read_manifest(version.path)
        assert manifest.version == version.number
        verify_files(version.path, manifest)


def export_until(stage: str, model_dir: Path, reached: Any) -> None:
    """Says that the stage has begun, and stays there."""

    def tell(event: ExportEvent) -> None:
        if event.stage == stage:
            reached.set()
            time.sleep(600)

    export_line(model_dir, ("saved_model", "onnx"), tell)


@pytest.mark.parametrize("stage", ["convert onnx", "publish"])
def test_a_killed_exporter_leaves_staging_only(elsewhere: Any, tmp_path: Path, stage: str) -> None:
    reached = elsewhere.Event()
    process = elsewhere.Process(target=export_until, args=(stage, tmp_path / "toy", reached))
    process.start()
    try:
        assert reached.wait(300)
    finally:
        process.kill()
        process.join()
    assert list_versions(tmp_path / "toy") == ()
    (left,) = (tmp_path / "toy").iterdir()
    assert left.name.startswith(STAGING_PREFIX)


def export_to_full_disks(model_dir: Path, told: Any) -> None:
    classifier = Classifier()
    signatures, data = make_signatures(classifier), make_data(classifier)
    # A SavedModel of 100 kB, a report of 60 kB, ONNX files of a few kB: each limit stops another writer.
    for limit in (1_000, 40_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            export(classifier, model_dir, data=data, signatures=signatures, source=Source(), options=OPTIONS)
        except ModelyardError as exc:
            told.send(type(exc).__name__)


def test_a_full_disk_leaves_nothing(elsewhere: Any, tmp_path: Path) -> None:
    here, there = elsewhere.Pipe(duplex=False)
    process = elsewhere.Process(target=export_to_full_disks, args=(tmp_path / "toy", there))
    process.start()
    there.close()
    with here:
        told = [here.recv() for _ in range(2)]
    process.join(60)
    assert process.exitcode == 0
    assert set(told) <= {"PublishError", "ConversionError"}
    assert list((tmp_path / "toy").iterdir()) == []


@pytest.mark.parametrize("name", ["modelyard.export", "modelyard.export.cli"])
def test_importing_the_package_is_cheap(name: str) -> None:
    code = (
        f"import sys, {name}; heavy = {{'tensorflow', 'keras', 'onnxruntime', 'tf2onnx', 'jsonschema', 'rich'}};"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
