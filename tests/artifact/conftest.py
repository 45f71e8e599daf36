from __future__ import annotations

from pathlib import Path

import pytest

from modelyard.artifact import (
    ClassAccuracy,
    FloatLayer,
    FormatEntry,
    ImageDecode,
    Latency,
    Manifest,
    Refusal,
    RowsCheck,
    RuntimeChoice,
    Signature,
    Source,
    TensorSpec,
    VerifyReport,
    hash_files,
)

IMAGE = TensorSpec(name="image", dtype="float32", shape=(-1, 2, 2, 1))
SCORES = TensorSpec(name="scores", dtype="float32", shape=(-1, 3))


@pytest.fixture
def staged_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files like those of a version."""
    folder = tmp_path_factory.mktemp("version") / "files"
    (folder / "onnx").mkdir(parents=True)
    (folder / "onnx" / "serving_default.onnx").write_bytes(b"graph")
    (folder / "model.tflite").write_bytes(b"flat" * 1000)
    return folder


@pytest.fixture
def manifest(staged_files: Path) -> Manifest:
    """A manifest that uses every field."""
    return Manifest(
        model="fashion",
        version=3,
        created="2026-01-02T03:04:05+00:00",
        source=Source(task="fashion", git_commit="abc", data="real", config={"epochs": 3}, metrics={"accuracy": 0.9}),
        signatures={
            "serving_default": Signature(inputs=(IMAGE,), outputs=(SCORES,), compute="serving_default"),
            "image_bytes": Signature(
                inputs=(TensorSpec(name="image_bytes", dtype="string", shape=(-1,)),),
                outputs=(SCORES,),
                compute="serving_default",
                decode=ImageDecode(input="image_bytes", channels=1),
                preprocess="image_bytes.preprocess",
            ),
            "any_rank": Signature(
                inputs=(TensorSpec(name="x", dtype="int64", shape=None),), outputs=(SCORES,), compute="any_rank"
            ),
        },
        files=hash_files(staged_files),
        formats={
            "onnx": FormatEntry(
                path="onnx",
                precision="float32",
                converter={"tf2onnx": "1"},
                runtime={"onnxruntime": "1"},
                verify=VerifyReport(
                    examples=256,
                    batch_sizes=(1, 32),
                    max_abs_error=1e-7,
                    max_rel_error=1e-6,
                    top1_agreement=1.0,
                    metric_before=0.9,
                    metric_after=0.9,
                    by_signature={"serving_default": 1e-7},
                    by_class=(ClassAccuracy(name="cat", examples=12, before=0.75, after=0.5),),
                    rows={"serving_default": RowsCheck(verdict="dependent", reason="a range over the batch")},
                ),
                renamed={"serving_default": {"x": "x_output"}},
                computed={"bfloat16": "float32"},
                kept_float32=(FloatLayer(graph="serving_default", layer="conv", operator="Conv", error=0.3),),
                other_runtimes={
                    "openvino": VerifyReport(examples=256, batch_sizes=(1, 32), max_abs_error=1e-6, max_rel_error=1e-5)
                },
                domains=("ai.onnx.ml",),
            )
        },
        latency=(
            Latency(
                format="onnx",
                runtime="onnxruntime",
                signature="serving_default",
                batch_size=1,
                threads=1,
                p50_us=34.5,
                precision="float32",
                examples_per_s=29000.0,
            ),
        ),
        choices=(
            RuntimeChoice(
                runtime="onnxruntime", format="onnx", precision="float32", threads=1, p50_us=34.5, speedup=5.6
            ),
        ),
        refused=(
            Refusal(
                format="tflite",
                precision="int8",
                runtime="litert",
                measure="accuracy_drop",
                value=0.021,
                allowed=0.005,
                reason="The accuracy fell.",
            ),
        ),
    )
