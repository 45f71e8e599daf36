from __future__ import annotations

import dataclasses
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from modelyard import artifact
from modelyard.artifact import (
    CLASSIFY_METHOD,
    MANIFEST_NAME,
    PRECISIONS,
    ExampleDecode,
    FeatureSpec,
    FileEntry,
    Manifest,
    Signature,
    Source,
    TensorSpec,
    format_key,
    format_path,
    has_own_files,
    hash_files,
    json_schema,
    onnx_file_name,
    onnx_files,
    parse_manifest,
    read_manifest,
    verify_files,
)
from modelyard.errors import IntegrityError, ManifestError


def document_of(manifest: Manifest) -> Any:
    """As one who changes it by hand has to leave it: without the checksum."""
    document = json.loads(manifest.to_json())
    del document["sha256"]
    return document


def test_the_schema_has_the_precisions() -> None:
    assert tuple(json_schema()["$defs"]["precision"]["enum"]) == PRECISIONS


def test_round_trip(manifest: Manifest) -> None:
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_every_flipped_bit_is_found(manifest: Manifest) -> None:
    text, rng = manifest.to_json(), random.Random(25)
    for _ in range(2000):
        content, at = bytearray(text.encode()), rng.randrange(len(text))
        content[at] ^= 1 << rng.randrange(8)
        try:
            found = parse_manifest(bytes(content), Path("m/1"))
        except ManifestError:
            continue
        # A field of that name is for later exporters: nothing of what is known has changed.
        assert found == manifest, f"bit flipped at {at}"


def test_what_is_written_follows_the_schema(manifest: Manifest) -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document_of(manifest))


def paths_of(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of the document that is a required field of the schema."""
    places: list[tuple[Any, ...]] = []
    free = {
        "absent", "config", "metrics", "converter", "runtime", "by_signature", "signatures", "formats",
        "other_runtimes", "renamed", "computed", "rows",
    }  # fmt: skip
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        place = (*path, key)
        if not (path and path[-1] in free):
            places.append(place)
        if isinstance(value, dict | list) and (key not in free or key in ("signatures", "formats")):
            places += paths_of(value, place)
    return places


OPTIONAL = {
    "absent", "accuracy_drop", "allowed", "by_class", "choices", "computed", "decode", "domains", "error",
    "examples_per_s", "kept_float32", "metric_after", "metric_before", "other_runtimes", "precision", "preprocess",
    "refused", "renamed", "rows", "shape", "speedup", "stateful", "stochastic", "tolerance", "top1_agreement",
    "unbatched", "value",
}  # fmt: skip


def test_every_missing_field_is_named(manifest: Manifest) -> None:
    checked = 0
    for place in paths_of(document_of(manifest)):
        if not isinstance(place[-1], str) or place[-1] in OPTIONAL:
            continue
        document = document_of(manifest)
        parent = document
        for key in place[:-1]:
            parent = parent[key]
        del parent[place[-1]]
        with pytest.raises(ManifestError, match=f"missing '{place[-1]}'"):
            Manifest.from_json(json.dumps(document))
        checked += 1
    assert checked > 40


@pytest.mark.parametrize("value", [True, {"a": 1}])
def test_every_wrong_type_is_named(manifest: Manifest, value: object) -> None:
    checked = 0
    for place in paths_of(document_of(manifest)):
        document = document_of(manifest)
        parent = document
        for key in place[:-1]:
            parent = parent[key]
        if isinstance(value, type(parent[place[-1]])):
            continue
        parent[place[-1]] = value
        # A decode is read as a whole.
        known = place[: place.index("decode") + 1] if "decode" in place else place
        named = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in known)
        with pytest.raises(ManifestError, match=re.escape(named)):
            Manifest.from_json(json.dumps(document))
        checked += 1
    assert checked > 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 0}, "schema_version 0; this modelyard reads 1"),
        ({"schema_version": 2}, "schema_version 2; this modelyard reads 1"),
        ({"signatures": []}, "expected dict; received list"),
        ({"runtime": 3}, "manifest.json.runtime: expected str; received int"),
        ({"created": "\ud800"}, "manifest.json.created: .*surrogates not allowed"),
    ],
)
def test_a_wrong_field_is_named(manifest: Manifest, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        Manifest.from_json(json.dumps(document_of(manifest) | change))


def test_numbers_that_are_no_float_are_named(manifest: Manifest) -> None:
    document = document_of(manifest)
    document["source"]["metrics"] = {"accuracy": 10**400}
    with pytest.raises(ManifestError, match="source.metrics.accuracy: int too large to convert to float"):
        Manifest.from_json(json.dumps(document))


def test_integers_of_64_bits_are_read(manifest: Manifest) -> None:
    document = document_of(manifest)
    for size in (2**63 - 1, -(2**63)):
        document["formats"]["onnx"]["verify"]["examples"] = size
        assert Manifest.from_json(json.dumps(document)).formats["onnx"].verify.examples == size
    document["formats"]["onnx"]["verify"]["examples"] = 2**63
    with pytest.raises(ManifestError, match=r"onnx\.verify\.examples: int too big to convert"):
        Manifest.from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "[" * 100_000])
def test_other_text_is_an_error(text: str) -> None:
    with pytest.raises(ManifestError, match="not JSON|expected an object"):
        Manifest.from_json(text)


def test_rows_are_of_three_kinds(manifest: Manifest) -> None:
    document = document_of(manifest)
    (name, entry), *_ = document["formats"].items()
    del entry["verify"]["rows"]
    assert Manifest.from_json(json.dumps(document)).formats[name].verify.rows == {}
    entry["verify"]["rows"] = {"serving_default": {"verdict": "perhaps", "reason": ""}}
    with pytest.raises(ManifestError, match="expected 'independent', 'dependent' or 'unknown'; received 'perhaps'"):
        Manifest.from_json(json.dumps(document))


def test_an_example_decode_round_trip(manifest: Manifest) -> None:
    features = (
        FeatureSpec(name="x", dtype="float32", shape=(2,), default=(0.5, 1)),
        FeatureSpec(name="image/name", dtype="string", default=("none",), input="name"),
        FeatureSpec(name="n", dtype="int64", shape=(1,)),
    )
    outputs = manifest.signatures["serving_default"].outputs
    signature = Signature(
        inputs=(TensorSpec(name="inputs", dtype="string", shape=(-1,)),),
        outputs=outputs,
        compute="classify",
        method=CLASSIFY_METHOD,
        decode=ExampleDecode(input="inputs", features=features),
    )
    changed = replace(manifest, signatures={**manifest.signatures, "classify": signature})
    jsonschema.Draft202012Validator(json_schema()).validate(json.loads(changed.to_json()))
    assert Manifest.from_json(changed.to_json()) == changed


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([], "expected at least one, each once"),
        ([{"name": "x", "dtype": "float32", "shape": []}] * 2, "expected at least one, each once"),
        ([{"dtype": "float32", "shape": []}], "missing 'name'"),
        ([{"name": "x", "dtype": "int32", "shape": []}], "dtype 'int32'; expected one of float32, int64, string"),
        ([{"name": "x", "dtype": "int64", "shape": [1], "default": ["a"]}], "expected 1 values of int64"),
        ([{"name": "x", "dtype": "int64", "shape": [1], "default": [True]}], "expected 1 values of int64"),
    ],
)
def test_wrong_features_are_errors(manifest: Manifest, features: list[dict[str, Any]], message: str) -> None:
    document = document_of(manifest)
    decode = {"kind": "example", "input": "image_bytes", "features": features}
    document["signatures"]["image_bytes"] |= {"decode": decode, "preprocess": None}
    with pytest.raises(ManifestError, match=message):
        Manifest.from_json(json.dumps(document))


@pytest.mark.parametrize("decode", [{"kind": "image", "input": "x", "channels": 2}, {"kind": "text", "input": "x"}])
def test_an_unknown_decode_is_an_error(manifest: Manifest, decode: dict[str, Any]) -> None:
    document = document_of(manifest)
    document["signatures"]["image_bytes"]["decode"] = {"channels": 3} | decode
    with pytest.raises(ManifestError, match="expected 'image' with 1 or 3, or 'example'"):
        Manifest.from_json(json.dumps(document))


@pytest.mark.parametrize("source", [Source(metrics={"loss": float("nan")}), Source(config={"path": Path("x")})])
def test_what_json_cannot_hold_is_an_error(manifest: Manifest, source: Source) -> None:
    with pytest.raises(ManifestError, match="cannot be written as JSON.*source.config and source.metrics"):
        replace(manifest, source=source).to_json()


def test_read_manifest(manifest: Manifest, staged_files: Path) -> None:
    with pytest.raises(ManifestError, match="it was not published by modelyard"):
        read_manifest(staged_files)
    (staged_files / MANIFEST_NAME).write_text(manifest.to_json(), "utf-8")
    assert read_manifest(staged_files) == manifest
    (staged_files / MANIFEST_NAME).write_text("{", "utf-8")
    with pytest.raises(ManifestError, match=str(staged_files)):
        read_manifest(staged_files)
    (staged_files / MANIFEST_NAME).write_bytes(b"\xff")
    with pytest.raises(ManifestError, match="cannot be read"):
        read_manifest(staged_files)


def test_hash_files_lists_all_but_the_manifest(staged_files: Path) -> None:
    (staged_files / MANIFEST_NAME).write_text("x")
    files = hash_files(staged_files)
    assert [(entry.path, entry.bytes) for entry in files] == [("model.tflite", 4000), ("onnx/serving_default.onnx", 5)]
    # What sha256sum prints for the five bytes "graph".
    assert files[1].sha256 == "eef93e1d14482804277fca0172464032d1a4fdbcc338524059fa1e861454ad4d"


def test_verify_files_accepts_what_was_published(manifest: Manifest, staged_files: Path) -> None:
    verify_files(staged_files, manifest)
    # What the manifest does not list is not its business.
    (staged_files / "assets.extra").mkdir()
    verify_files(staged_files, manifest)


def test_verify_files_finds_damage(manifest: Manifest, staged_files: Path) -> None:
    path = staged_files / "model.tflite"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"X")
    with pytest.raises(IntegrityError, match="sha256"):
        verify_files(staged_files, manifest)
    path.write_bytes(content[:-1])
    with pytest.raises(IntegrityError, match="has 3999 bytes; its manifest says 4000"):
        verify_files(staged_files, manifest)
    path.unlink()
    with pytest.raises(IntegrityError, match="lacks model.tflite"):
        verify_files(staged_files, manifest)


@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "onnx/../../secret", "link"])
def test_verify_files_stays_inside(manifest: Manifest, staged_files: Path, path: str) -> None:
    (staged_files.parent / "secret").write_bytes(b"secret")
    (staged_files / "link").symlink_to("../secret")
    bad = replace(manifest, files=(FileEntry(path=path, bytes=6, sha256="0" * 64),))
    with pytest.raises(ManifestError, match="leaves the version directory"):
        verify_files(staged_files, bad)


def test_a_manifest_of_the_first_exporters_is_read(manifest: Manifest) -> None:
    document = document_of(manifest)
    for key in ("absent", "choices", "refused"):
        del document[key]
    del document["formats"]["onnx"]["other_runtimes"], document["formats"]["onnx"]["verify"]["accuracy_drop"]
    del document["latency"][0]["precision"], document["latency"][0]["examples_per_s"]
    jsonschema.Draft202012Validator(json_schema()).validate(document)
    old = Manifest.from_json(json.dumps(document))
    assert (old.choices, old.refused, old.formats["onnx"].other_runtimes) == ((), (), {})
    assert (old.latency[0].precision, old.latency[0].examples_per_s) == ("float32", None)


def test_names_of_variants() -> None:
    assert [format_key("onnx"), format_key("onnx", "float32"), format_key("tflite", "int8")] == [
        "onnx", "onnx", "tflite.int8",
    ]  # fmt: skip


def test_where_the_files_of_formats_are(tmp_path: Path) -> None:
    """The float32 ones where other servers look for them; no graph's name is a path."""
    files = {
        ("saved_model", "float32"): ".",
        ("onnx", "float32"): "onnx", ("onnx", "bfloat16"): "onnx", ("onnx", "int8"): "onnx/int8",
        ("tflite", "float32"): "model.tflite", ("tflite", "bfloat16"): "model.tflite",
        ("tflite", "float16"): "model.float16.tflite",
    }  # fmt: skip
    assert {names: format_path(*names) for names in files} == files
    assert [each for each in PRECISIONS if has_own_files(each)] == ["float16", "int8_dynamic", "int8"]
    graphs = ["a/../b", "plain", "\u00fc.onnx"]
    assert [onnx_file_name(graph) for graph in graphs] == ["a%2F..%2Fb.onnx", "plain.onnx", "%C3%BC.onnx.onnx"]
    for graph in graphs:
        (tmp_path / onnx_file_name(graph)).touch()
    (tmp_path / "int8.onnx").mkdir()
    (tmp_path / "weights.data").touch()
    assert onnx_files(tmp_path) == {graph: tmp_path / onnx_file_name(graph) for graph in graphs}


def test_what_is_in_an_artifact_does_not_change_and_is_made_by_names() -> None:
    kinds: list[Any] = [each for name in artifact.__all__ if dataclasses.is_dataclass(each := getattr(artifact, name))]
    assert Manifest in kinds
    for kind in kinds:
        assert kind.__dataclass_params__.frozen, kind
        assert all(field.kw_only for field in dataclasses.fields(kind)), kind


def test_what_earlier_exporters_wrote_is_read(manifest: Manifest) -> None:
    document = document_of(manifest)
    for entry in document["formats"].values():
        entry["verify"]["empty_batch"] = True
    jsonschema.Draft202012Validator(json_schema()).validate(document)
    assert Manifest.from_json(json.dumps(document)) == manifest
