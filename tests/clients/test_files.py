"""``modelyard predict`` with every kind of file in and out, against a real server."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelyard import errors
from modelyard.cli import main
from modelyard.clients import RowResult, SignatureInfo, TensorInfo, read_rows
from modelyard.clients.cli._sinks import done_rows, open_sink
from modelyard.training.data import FashionMnist
from modelyard.wire import read_records, tensorflow_pb2
from tests.support.server import RunningServer

X = [0.0, 1.0, 2.5]
Y = [2.0, 2.5, 3.25]


def write_tfrecord(path: Path, records: list[bytes]) -> None:
    """With the library that defines the format."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)


def example(*x: float) -> bytes:
    message = tensorflow_pb2.Example()
    feature = message.features.feature["x"]
    values = feature.int64_list if all(isinstance(item, int) for item in x) else feature.float_list
    values.value.extend(x)  # type: ignore[arg-type]
    return message.SerializeToString()


def make(path: Path) -> Path:
    if path.suffix == ".npy":
        np.save(path, np.array(X, np.float32))
    elif path.suffix == ".npz":
        np.savez(path, x=np.array(X, np.float32))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"x": x}) + "\n\n" for x in X))
    elif path.suffix == ".csv":
        path.write_text("x\n" + "".join(f"{x}\n" for x in X))
    else:
        write_tfrecord(path, [example(x) for x in X])
    return path


@pytest.mark.parametrize("suffix", ["npy", "npz", "jsonl", "csv", "tfrecord"])
def test_every_source(
    affine_server: RunningServer, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make(tmp_path / f"rows.{suffix}")
    arguments = ["predict", "affine", str(source), "--server", f"grpc://{affine_server.grpc_address}"]
    assert main([*arguments, "--batch-size", "2", "--concurrency", "2"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["outputs"]["y"] for row in rows] == Y
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert all(row["input"].startswith(str(source)) for row in rows)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "npz"])
def test_every_output(fashion_server: RunningServer, fashion: FashionMnist, tmp_path: Path, suffix: str) -> None:
    source, output = tmp_path / "images.npy", tmp_path / f"out.{suffix}"
    np.save(source, (fashion.test_images[:5, ..., None] / 255).astype(np.float32))
    arguments = ["predict", "fashion", str(source), "--server", fashion_server.rest_url, "--output", str(output)]
    assert main(arguments) == 0
    if suffix == "csv":
        table = list(csv.DictReader(output.read_text().splitlines()))
        classes = [int(row["class_id"]) for row in table]
        best = [max(range(10), key=lambda index: float(row[f"probabilities[{index}]"])) for row in table]
        assert all(row["label"] and row["error"] == "" for row in table)
    elif suffix == "jsonl":
        rows = [json.loads(line)["outputs"] for line in output.read_text().splitlines()]
        classes = [row["class_id"] for row in rows]
        best = [int(np.argmax(row["probabilities"])) for row in rows]
    else:
        with np.load(output, allow_pickle=False) as arrays:
            classes, best = arrays["class_id"].tolist(), arrays["probabilities"].argmax(axis=1).tolist()
            assert arrays["index"].tolist() == list(range(5))
            assert arrays["label"].dtype.kind == "S"
    assert classes == best
    assert len(classes) == 5


def test_paths_of_rows_may_be_text(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("x\n1\n")
    info = TensorInfo(name="x", dtype="float32", shape=(-1,))
    signature = SignatureInfo(name="s", method="", inputs={"x": info}, outputs={})
    (row,) = read_rows([str(tmp_path / "rows.csv")], signature)
    assert row.inputs == {"x": 1.0}


def test_failures_are_rows_and_a_second_run_sends_only_those(
    fashion_server: RunningServer, fashion: FashionMnist, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    paths = [tmp_path / f"{index}.png" for index in range(4)]
    for path, pixels in zip(paths, fashion.test_images, strict=False):
        Image.fromarray(pixels).save(path)
    good = paths[2].read_bytes()
    paths[2].write_bytes(good[:40])
    output = tmp_path / "out.jsonl"
    arguments = ["predict", "fashion", *map(str, paths), "--server", f"grpc://{fashion_server.grpc_address}"]
    assert main([*arguments, "--output", str(output)]) == 1
    assert "not a complete image" in capsys.readouterr().err
    assert done_rows(str(output)) == {0, 1, 3}
    paths[2].write_bytes(good)
    assert main([*arguments, "--output", str(output), "--resume", "--outputs", "class_id"]) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["index"] for row in rows] == [0, 1, 2, 3, 2]
    assert "error" in rows[2]
    assert list(rows[4]["outputs"]) == ["class_id"]
    assert main([*arguments, "--output", str(output.with_suffix(".csv"))]) == 0


def test_going_on_after_a_full_disk(
    affine_server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = make(tmp_path / "rows.jsonl"), tmp_path / "out.jsonl"
    arguments = ["predict", "affine", str(source), "--server", f"grpc://{affine_server.grpc_address}", "--output"]
    for suffix in (".jsonl", ".csv"):
        output.with_suffix(suffix).symlink_to("/dev/full")
        assert main([*arguments, str(output.with_suffix(suffix))]) == 2
        assert f"out{suffix} cannot be written: No space left on device." in capsys.readouterr().err
    output.unlink()
    assert main([*arguments, str(output)]) == 0
    whole = output.read_bytes()
    for left in (1, 12, len(whole) - whole.rindex(b'{"index"') + 20):
        output.write_bytes(whole[:-left])
        assert main([*arguments, str(output), "--resume"]) == 0
        assert output.read_bytes() == whole


@pytest.mark.parametrize(
    ("name", "content", "bad"),
    [
        ("a.jsonl", b'{"x": 0}\n\n{"x": \n1\n\xff\n{"x": {"b": 1}}\n{"x": 2}\n', [(3, 1), (5, 3), (6, 4)]),
        ("a.csv", b"x\n0\none\n1\n2,3\n2\n", [(3, 1), (5, 3)]),
    ],
)
def test_a_line_that_cannot_be_read_stops_no_other(
    affine_server: RunningServer,
    tmp_path: Path,
    name: str,
    content: bytes,
    bad: list[tuple[int, int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    arguments = ["predict", "affine", str(path), "--server", f"grpc://{affine_server.grpc_address}"]
    assert main(arguments) == 1
    captured = capsys.readouterr()
    rows = [json.loads(line) for line in captured.out.splitlines()]
    assert [row["outputs"]["y"] for row in rows if "outputs" in row] == [2.0, 2.5, 3.0]
    assert [row["index"] for row in rows if "error" in row] == [index for _, index in bad]
    for line, _ in bad:
        assert f"modelyard predict: {path}:{line}: {path}, line {line}: " in captured.err


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_numpys_own_dtypes_become_the_signatures(
    affine_server: RunningServer, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["predict", "affine", str(tmp_path / f"a{suffix}"), "--server", f"grpc://{affine_server.grpc_address}"]
    for values, answers in (([0.0, 0.1], [2.0, pytest.approx(2.05)]), ([0, 3], [2.0, 3.5]), ([1.0, 1e300], [2.5])):
        np.save(tmp_path / "a.npy", np.array(values))
        np.savez(tmp_path / "a.npz", x=np.array(values))
        assert main(arguments) == (len(answers) < 2)
        captured = capsys.readouterr()
        rows = [json.loads(line) for line in captured.out.splitlines()]
        assert [row["outputs"]["y"] for row in rows if "outputs" in row] == answers
    assert "a" + suffix + ":1: Input 'x' is float64, whose values float32 cannot hold" in captured.err


def _signature(**dtypes: str) -> SignatureInfo:
    inputs = {name: TensorInfo(name=name, dtype=dtype, shape=(-1,)) for name, dtype in dtypes.items()}
    return SignatureInfo(name="s", method="", inputs=inputs, outputs={})


def read(path: Path, **dtypes: str) -> list[Any]:
    rows = list(read_rows([path], _signature(**dtypes)))
    for row in rows:
        if row.error is not None:
            raise row.error
    return [dict(row.inputs) for row in rows]


def test_csv_takes_the_signatures_dtypes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('i,f,s,b\n3,1,"a,é",true\n-4,2.5,,0\n')
    assert read(path, i="int64", f="float32", s="string", b="bool") == [
        {"i": 3, "f": 1.0, "s": "a,é", "b": True},
        {"i": -4, "f": 2.5, "s": "", "b": False},
    ]
    # As Excel writes UTF-8.
    path.write_text("i\n3\n", encoding="utf-8-sig")
    assert read(path, i="int64") == [{"i": 3}]


def test_json_lines_carry_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"s": {"b64": "AP8="}, "l": [1, [2]]}\n')
    assert read(path) == [{"s": b"\0\xff", "l": [1, [2]]}]


def test_json_lines_as_rest_has_them(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"x": [1], "y": 2}\n{"instances": [{"x": [3], "y": 4}, {"x": [5], "y": 6}]}\n'
        '{"signature_name": "s", "inputs": {"x": [[7], [9]], "y": [8, 10]}}\n'
    )
    assert [(row["x"], row["y"]) for row in read(path, x="float32", y="float32")] == [
        ([1], 2), ([3], 4), ([5], 6), ([7], 8), ([9], 10),
    ]  # fmt: skip
    assert [row.name for row in read_rows([path], _signature(x="float32", y="float32"))][:2] == [
        f"{path}:1",
        f"{path}:2:0",
    ]
    path.write_text('"a"\n{"b64": "Yg=="}\n{"instances": ["c", {"s": "d"}]}\n{"inputs": ["e"]}\n')
    assert [row["s"] for row in read(path, s="string")] == ["a", b"b", "c", "d", "e"]
    # An input of that name is no body of a request.
    path.write_text('{"inputs": [1]}\n')
    assert read(path, inputs="float32") == [{"inputs": [1]}]


def test_tfrecords_as_examples_or_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    write_tfrecord(path, [example(1.5), example(2)])
    assert [row["x"].item() for row in read(path, x="float32")] == [1.5, 2.0]
    assert read(path, examples="string") == [{"examples": example(1.5)}, {"examples": example(2)}]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([2**40 + 5], "int32"),
        ([300, -1], "uint8"),
        ([5], "bool"),
        ([2**24 + 1], "float32"),
        ([7e4], "float16"),
        ([0.5], "int64"),
    ],
)
def test_features_that_the_dtype_cannot_hold_fail_their_row(tmp_path: Path, values: list[Any], dtype: str) -> None:
    path = tmp_path / "a.tfrecord"
    write_tfrecord(path, [example(*values), example(*[1] * len(values))])
    inputs = {"x": TensorInfo(name="x", dtype=dtype, shape=(-1, len(values)))}
    bad, good = read_rows([path], SignatureInfo(name="s", method="", inputs=inputs, outputs={}))
    assert isinstance(bad.error, errors.InvalidInputError)
    assert f"whose values {dtype} cannot hold" in bad.error.message
    (x,) = good.inputs.values()
    assert isinstance(x, np.ndarray) and x.dtype == dtype and x.tolist() == [1] * len(values)


def test_a_feature_of_bytes_is_no_number(tmp_path: Path) -> None:
    message = tensorflow_pb2.Example()
    message.features.feature["x"].bytes_list.value.append(b"1")
    write_tfrecord(tmp_path / "a.tfrecord", [message.SerializeToString()])
    with pytest.raises(errors.InvalidRequestError, match="feature 'x' is bytes; the input is float32"):
        read(tmp_path / "a.tfrecord", x="float32")


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.xml", b"", "expected images"),
        ("absent.csv", None, "cannot be read"),
        ("a.csv", b"x\n1,2\n", "line 2: expected 1 values"),
        ("a.csv", b"x\nfour\n", "'four' is no float32"),
        ("a.jsonl", b'{"inputs": 1}\n', "no list for each of x"),
        ("a.jsonl", b'{"inputs": {"x": [1], "y": [1, 2]}}\n', "different numbers of rows"),
        ("a.jsonl", b"{\n", "line 1: not JSON"),
        ("a.jsonl", b"[" * 100_000, "line 1: not JSON"),
        ("a.jsonl", b'{"x": {"b65": ""}}\n', "b64"),
        ("a.csv", b"x\n\xe9\n", "no UTF-8 text"),
        ("a.csv", b"x\n1\n" + b"9" * 200_000, "line 3: field larger"),
        ("a.npy", b"no array", "plain numpy arrays"),
        ("a.npy", b"", "plain numpy arrays"),
        ("a.npz", b"PK\x03\x04 and no more", "plain numpy arrays"),
        ("a.tfrecord", b"\1" * 40, "damaged"),
        ("a.tfrecord", b"\1\2", "damaged"),
        ("a.png", b"", "expected one string input"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, name: str, content: bytes | None, match: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    kinds = (errors.ConfigurationError, errors.InvalidRequestError, errors.IntegrityError)
    with pytest.raises(kinds, match=match):
        read(tmp_path / name, x="float32")


def test_a_line_alone_needs_the_only_input(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("[1]\n")
    with pytest.raises(errors.InvalidRequestError, match="line 1: expected an object"):
        read(path, x="float32", y="float32")


def test_arrays_that_do_not_fit(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(2), y=np.zeros(3))
    with pytest.raises(errors.InvalidRequestError, match="a row for each example"):
        read(tmp_path / "a.npz", x="float32", y="float32")
    np.save(tmp_path / "a.npy", np.zeros(2))
    with pytest.raises(errors.InvalidRequestError, match="Use .npz"):
        read(tmp_path / "a.npy", x="float32", y="float32")
    np.savez(tmp_path / "a.npz", x=np.array([1.0, None], object))
    with pytest.raises(errors.InvalidRequestError, match="plain numpy arrays: Object arrays"):
        read(tmp_path / "a.npz", x="float32")


def test_a_changed_byte_of_a_record_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    write_tfrecord(path, [b"some record"])
    data = bytearray(path.read_bytes())
    data[15] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(errors.IntegrityError, match="another checksum"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("output", "resume", "match"),
    [
        ("out.xml", False, "expected csv or jsonl"),
        ("npz", False, "expected csv or jsonl"),
        ("out.csv", True, "--resume takes"),
        ("/absent/out.csv", False, "cannot be written"),
    ],
)
def test_outputs_that_are_none(output: str, resume: bool, match: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=match):
        open_sink(output, resume=resume)


def test_names_that_are_no_text_are_escaped(affine_server: RunningServer, tmp_path: Path) -> None:
    source, output = make(tmp_path / os.fsdecode(b"caf\xe9.jsonl")), tmp_path / "out.jsonl"
    arguments = ["predict", "affine", str(source), "--server", f"grpc://{affine_server.grpc_address}"]
    for _ in range(2):
        assert main([*arguments, "--output", str(output), "--resume"]) == 0
        rows = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
        assert [row["input"] for row in rows] == [f"{source}:{line}" for line in (1, 3, 5)]
    assert main([*arguments, "--output", str(output.with_suffix(".csv"))]) == 0
    assert "caf\\udce9.jsonl:1" in output.with_suffix(".csv").read_text("utf-8")


def test_json_has_no_complex_numbers(tmp_path: Path) -> None:
    with open_sink(str(tmp_path / "a.jsonl"), resume=False) as sink:
        with pytest.raises(errors.InvalidRequestError, match="row: JSON has no complex numbers. Use npz"):
            sink.write("row", RowResult(index=0, outputs={"y": np.array([1j])}, error=None))


def test_json_lines_have_null_for_what_is_not_finite(tmp_path: Path) -> None:
    outputs = {"y": np.array([1, np.nan, np.inf], np.float32), "z": np.array(-np.inf, np.float32)}
    with open_sink(str(tmp_path / "a.jsonl"), resume=False) as sink:
        sink.write("a", RowResult(index=0, outputs=outputs, error=None))
    line = json.loads((tmp_path / "a.jsonl").read_text(), parse_constant=pytest.fail)
    assert line["outputs"] == {"y": [1.0, None, None], "z": None}


@pytest.mark.parametrize(("kind", "name"), [("npz", "file"), ("npz", "index"), ("csv", "error"), ("csv", "input")])
def test_outputs_whose_names_the_form_has_itself(tmp_path: Path, kind: str, name: str) -> None:
    sink = open_sink(str(tmp_path / f"a.{kind}"), resume=False)
    with pytest.raises(errors.InvalidRequestError, match=f"an output '{name}', which this form has itself. Use jsonl"):
        sink.write("row", RowResult(index=0, outputs={"y": np.array(1), name: np.array(2)}, error=None))
    sink.close(complete=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_behind_the_standard_output(affine_server: RunningServer, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"x": 1.0}\n' * 1000)
    modelyard = str(Path(sys.executable).with_name("modelyard"))
    command = [modelyard, "predict", "affine", str(source), "--output", "jsonl"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, "--server", f"grpc://{affine_server.grpc_address}"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert "utput cannot be written: No space left on device." in done.stderr


def test_going_on_with_something_else(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("not ours\n")
    with pytest.raises(errors.ConfigurationError, match="something else"):
        done_rows(str(path))
    # Not what a full disk leaves of one of our lines.
    path.write_text("not ours")
    with pytest.raises(errors.ConfigurationError, match="something else"):
        done_rows(str(path))
    assert path.read_text() == "not ours"
    with pytest.raises(errors.ConfigurationError, match="cannot be written"):
        done_rows(str(tmp_path))
    assert done_rows(str(tmp_path / "absent.jsonl")) == set()


def test_strings_that_npz_would_cut_are_refused(tmp_path: Path) -> None:
    for strings, whole in (([b"a\xff", b""], True), ([b"a\0", b"b"], False)):
        sink = open_sink(str(tmp_path / "out.npz"), resume=False)
        for index, value in enumerate(strings):
            outputs = {"text": np.array(value, object)}
            sink.write("row", RowResult(index=index, outputs=outputs, error=None))
        if whole:
            sink.close(complete=True)
            assert np.load(tmp_path / "out.npz")["text"].tolist() == strings
        else:
            with pytest.raises(errors.InvalidRequestError, match="'text' has strings that end with a zero byte"):
                sink.close(complete=True)
