"""modelyard batch: files to files on Beam's own runner, in every form, begun again, and by a server."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from PIL import Image

from modelyard.batch import BatchModel, FileOptions, predict_files
from modelyard.batch._files import writing
from modelyard.cli import main
from modelyard.clients import ClientOptions, connect
from modelyard.errors import ConfigurationError, PredictionError
from modelyard.training.data import FashionMnist, load_fashion_mnist
from modelyard.wire import read_records, tensorflow_pb2
from tests.support.access import entry, key_of
from tests.support.classifier import publish_classifier
from tests.support.object_store import s3
from tests.support.server import serve

pytestmark = pytest.mark.filterwarnings("ignore")
FILES, ROWS = 3, 20


@pytest.fixture(scope="module")
def data() -> FashionMnist:
    return load_fashion_mnist()


@pytest.fixture(scope="module")
def fashion(tmp_path_factory: pytest.TempPathFactory, data: FashionMnist) -> str:
    folder = tmp_path_factory.mktemp("repository") / "fashion"
    publish_classifier(folder, data)
    return str(folder)


@pytest.fixture(scope="module")
def images(data: FashionMnist) -> np.ndarray:
    return (data.test_images[: FILES * ROWS] / 255).astype(np.float32).reshape(-1, 28, 28, 1)


@pytest.fixture(scope="module")
def labels(fashion: str, images: np.ndarray) -> list[str]:
    found = [each.decode() for each in BatchModel(fashion)({"image": images})["label"]]
    assert len(set(found)) > 5
    return found


@pytest.fixture
def parts(tmp_path: Path, images: np.ndarray) -> Path:
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(FILES):
        rows = range(part * ROWS, (part + 1) * ROWS)
        lines = [json.dumps({"id": row, "image": images[row].tolist(), "other": "x"}) for row in rows]
        (folder / f"{part}.jsonl").write_text("\n".join(lines))
    return folder


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]


def test_lines(
    fashion: str, parts: Path, labels: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "answers"
    command = ["batch", fashion, str(parts / "*.jsonl"), "--output", str(output), "--outputs", "label", "--keep", "id"]
    assert main([*command, "--batch-size", "7"]) == 0
    assert f"{FILES} files written to {output}, {FILES * ROWS} rows, " in capsys.readouterr().out
    assert _rows(output) == [{"id": row, "label": label} for row, label in enumerate(labels)]
    # Once more: what is there stays, and what is missing comes again.
    (output / "1.jsonl").unlink()
    kept = (output / "0.jsonl").stat().st_ino
    assert main(command) == 0
    assert f"1 file written to {output}, {ROWS} rows, " in (said := capsys.readouterr().out)
    assert f"; {FILES - 1} were there already." in said
    assert (output / "0.jsonl").stat().st_ino == kept
    assert [row["label"] for row in _rows(output)] == labels


def test_a_bad_row_costs_its_file_alone(fashion: str, parts: Path, labels: list[str], tmp_path: Path) -> None:
    good = (parts / "1.jsonl").read_text()
    (parts / "1.jsonl").write_text(good + '\n{"id": 99}')
    options = FileOptions(
        model=BatchModel(fashion, outputs=["label"]), inputs=[str(parts)], output=str(tmp_path / "out")
    )
    with pytest.raises(PredictionError, match=r"1\.jsonl: Row 21 has the fields \['id'\].* goes on from there"):
        predict_files(options)
    there = {path.name for path in (tmp_path / "out").iterdir()}
    assert there <= {"0.jsonl", "2.jsonl"}
    (parts / "1.jsonl").write_text(good)
    report = predict_files(options)
    assert (report.kept, report.written, report.rows) == (len(there), FILES - len(there), (FILES - len(there)) * ROWS)
    assert [row["label"] for row in _rows(tmp_path / "out")] == labels


@pytest.mark.parametrize("form", ["jsonl", "parquet", "tfrecord"])
def test_a_file_without_rows_becomes_one(
    fashion: str, tmp_path: Path, form: Literal["jsonl", "parquet", "tfrecord"]
) -> None:
    source = tmp_path / "none.jsonl"
    source.touch()
    options = FileOptions(model=BatchModel(fashion), inputs=[str(source)], output=str(tmp_path / "out"), form=form)
    assert (predict_files(options).written, predict_files(options).kept) == (1, 1)


def test_json_lines_have_null_for_what_is_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with writing(path, "jsonl") as write:
        write({"y": np.array([[1, np.nan], [np.inf, 2]], np.float32)})
    rows = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    assert rows == [{"y": [1.0, None]}, {"y": [None, 2.0]}]


def test_parquet_and_records(fashion: str, parts: Path, images: np.ndarray, labels: list[str], tmp_path: Path) -> None:
    """Each form is written from another and read again; nothing changes on the way."""
    model = BatchModel(fashion, outputs=["label", "probabilities"], keep=["id", "image"])
    source = str(parts)
    for form in ("parquet", "tfrecord", "parquet"):
        output = tmp_path / f"{form}-of-{Path(source).name}"
        predict_files(FileOptions(model=model, inputs=[source], output=str(output), form=form, batch_size=9))
        source = str(output)
    table = pq.read_table(source)
    assert table["label"].to_pylist() == labels
    assert table["id"].to_pylist() == list(range(FILES * ROWS))
    np.testing.assert_array_equal(np.stack(table["image"].to_numpy()), images.reshape(len(images), -1))
    expected = BatchModel(fashion)({"image": images})["probabilities"]
    np.testing.assert_allclose(np.stack(table["probabilities"].to_numpy()), expected, atol=1e-6)
    (record, *_) = read_records(tmp_path / "tfrecord-of-parquet-of-parts" / "0.tfrecord")
    assert tensorflow_pb2.Example.FromString(record).features.feature["id"].int64_list.value[:] == [0]


def test_images_by_a_server(
    fashion: str, data: FashionMnist, labels: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "photos" / "deep"
    folder.mkdir(parents=True)
    for number in range(ROWS):
        Image.fromarray(data.test_images[number].reshape(28, 28)).save(folder / f"{number:02}.png")
    # As ImageFolder writes it.
    (tmp_path / "photos" / "vocabulary.txt").write_text("coat\nshoe\n")
    (tmp_path / "access.toml").write_text(entry("batches", "predict", "metadata"))
    monkeypatch.setenv("MODELYARD_TOKEN", key_of("batches"))
    flags = [f"--access_file={tmp_path / 'access.toml'}"]
    with serve(fashion, model="fashion", log_dir=tmp_path, flags=flags, admin=False, wait=False) as server:
        with connect(f"grpc://{server.grpc_address}", ClientOptions(token=key_of("batches"))) as client:
            client.wait_ready("fashion")
        address = ["--server", f"grpc://{server.grpc_address}", "--signature", "image_bytes"]
        output = ["--output", str(tmp_path / "out"), "--outputs", "label"]
        assert main(["batch", "fashion", str(tmp_path / "photos"), *address, *output]) == 0
    (path,) = (tmp_path / "out").iterdir()
    assert path.name == "images-00000-of-00001.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == [{"path": str(folder / f"{n:02}.png"), "label": labels[n]} for n in range(ROWS)]


def test_prism(fashion: str, parts: Path, labels: list[str], tmp_path: Path) -> None:
    """Another runner: Beam's Prism, a process of its own; the worker is in this one."""
    prism = os.environ.get("MODELYARD_PRISM") or shutil.which("prism")
    if prism is None:
        pytest.skip("prism is not installed (go install github.com/apache/beam/sdks/v2/go/cmd/prism@latest)")
    runner = ["--runner=PrismRunner", f"--prism_location={prism}"]
    output = tmp_path / "answers"
    command = ["batch", fashion, str(parts), "--output", str(output), "--outputs", "label", "--keep", "id"]
    assert main([*command, "--", *runner]) == 0
    assert _rows(output) == [{"id": row, "label": label} for row, label in enumerate(labels)]
    (output / "1.jsonl").unlink()
    options = FileOptions(
        model=BatchModel(fashion, outputs=["label"], keep=["id"]),
        inputs=[str(parts)],
        output=str(output),
        runner=runner,
    )
    assert (report := predict_files(options)).written == 1 and report.kept == FILES - 1
    assert [row["label"] for row in _rows(output)] == labels


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "broken"
    folder.mkdir()
    for suffix in ("jsonl", "parquet", "tfrecord"):
        (folder / f"x.{suffix}").write_text("{")
    yield folder


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("jsonl", "x.jsonl: Line 1 is not JSON"),
        ("parquet", "x.parquet: It is no Parquet file"),
        ("tfrecord", "x.tfrecord: .* is damaged at byte 0"),
    ],
)
def test_files_that_are_none_of_their_form(fashion: str, broken: Path, form: str, message: str, tmp_path: Path) -> None:
    options = FileOptions(model=BatchModel(fashion), inputs=[str(broken / f"x.{form}")], output=str(tmp_path / "out"))
    with pytest.raises(PredictionError, match=message):
        predict_files(options)


def test_what_cannot_begin(parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def options(*inputs: str, output: str = "out", **more: Any) -> FileOptions:
        return FileOptions(model=BatchModel("m"), inputs=inputs, output=str(tmp_path / output), **more)

    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigurationError, match=r"notes\.txt is no file that can be read; expected \.jsonl"):
        predict_files(options(str(tmp_path / "notes.txt")))
    with pytest.raises(ConfigurationError, match="There is no file .*absent"):
        predict_files(options(str(tmp_path / "absent")))
    with pytest.raises(ConfigurationError, match="or an input itself; choose another --output"):
        predict_files(options(str(parts), output="parts"))
    with pytest.raises(ConfigurationError, match="Beam does not take the options --runner=NoRunner"):
        predict_files(options(str(parts), runner=["--runner=NoRunner"]))
    with pytest.raises(ConfigurationError, match=r"batch_size \(--batch-size\) is 0"):
        options(str(parts), batch_size=0)
    assert main(["batch", "m", str(tmp_path / "absent"), "--output", "x"]) == 2
    assert "modelyard batch: There is no file" in capsys.readouterr().err


def _objects(bucket: str) -> dict[str, bytes]:
    import s3fs

    store = s3fs.S3FileSystem(skip_instance_cache=True)
    return {path.removeprefix(f"{bucket}/"): store.cat(path) for path in store.find(bucket)}


def test_object_stores(fashion: str, parts: Path, labels: list[str]) -> None:
    """The model, what is read and what is written are in a store; an object is whole or is not there."""
    import s3fs

    with s3("lake"):
        store = s3fs.S3FileSystem(skip_instance_cache=True)
        store.put(f"{parts}/", "lake/parts/", recursive=True)
        store.put(f"{fashion}/", "lake/models/fashion/", recursive=True)
        good = store.cat("lake/parts/1.jsonl")
        store.pipe("lake/parts/1.jsonl", good + b'\n{"id": 99}')
        options = FileOptions(
            model=BatchModel("s3://lake/models/fashion", outputs=["label"], keep=["id"], threads=1),
            inputs=["s3://lake/parts"],
            output="s3://lake/out/answers",
        )
        with pytest.raises(PredictionError, match=r"s3://lake/parts/1\.jsonl: Row 21 "):
            predict_files(options)
        before = {name: body for name, body in _objects("lake").items() if name.startswith("out/")}
        assert not before.keys() & {"out/answers/1.jsonl"}
        # What a worker left that was killed between writing and renaming.
        store.pipe(f"lake/out/answers/.1.jsonl.{'0' * 32}", b"half")
        store.pipe("lake/parts/1.jsonl", good)
        report = predict_files(options)
        there = {name for name in before if not name.rpartition("/")[2].startswith(".")}
        assert (report.kept, report.written) == (len(there), FILES - len(there))
        after = {name: body for name, body in _objects("lake").items() if name.startswith("out/")}
    answers = sorted(name for name in after if not name.rpartition("/")[2].startswith("."))
    assert answers == [f"out/answers/{part}.jsonl" for part in range(FILES)]
    assert {name: after[name] for name in there} == {name: before[name] for name in there}
    rows = [json.loads(line) for name in answers for line in after[name].splitlines()]
    assert rows == [{"id": row, "label": label} for row, label in enumerate(labels)]
