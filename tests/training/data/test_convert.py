"""Real Beam pipelines, through the command line; all in one process, for to import Beam takes seconds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import s3fs
import tensorflow as tf

from modelyard.training.data import FashionMnist, ImageOptions, open_records, scan_images, tfrecord_dataset
from tests.support.object_store import s3
from tests.training.conftest import ROOT, RunPython

COMMANDS = """
import contextlib, io, json, sys
from modelyard.cli import main
done = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["data", "convert", *arguments])
    done.append({"code": code, "out": out.getvalue(), "err": err.getvalue()})
print(json.dumps(done))
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def source(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos, one of them cut off, and a file that is none."""
    source = tmp_path_factory.mktemp("source") / "photos"
    shutil.copytree(photos, source)
    whole = next((source / "bag").iterdir()).read_bytes()
    (source / "bag" / "cut.jpeg").write_bytes(whole[: len(whole) // 2])
    (source / "coat" / "notes.txt").write_text("hello")
    return source


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Done]]:
    root = tmp_path_factory.mktemp("converted")
    (root / "names.txt").write_text("coat\n")
    commands = {
        # First, for to have made any pipeline tells Beam where an object store is; and without a bad image.
        "small": ["s3://data/small", "s3://data/few", "--shards", "1", "--test-share", "0"],
        "photos": [str(source), "photos", "--shards", "3", "--runner=DirectRunner"],
        "again": [str(source), "photos"],
        "allowed": [str(source), "allowed", "--allow-bad", "2", "--shards", "1", "--test-share", "0"],
        "fashion": ["fashion-mnist", "fashion", "--shards", "2"],
        "nowhere": ["nowhere", "out"],
        "shards": ["fashion-mnist", "out", "--shards", "0"],
        "runner": ["fashion-mnist", "out", "--runner=NoSuchRunner"],
        "flag": ["fashion-mnist", "out", "--shrads", "3"],
        "stray": ["fashion-mnist", "out", "stray"],
        "vocabulary": [str(source), "out", "--vocabulary", "names.txt"],
        "store": ["s3://data/photos", "s3://data/records", "--shards", "3"],
    }
    environment = {"PATH": "", "MODELYARD_DATA": "subset", "PYTHONPATH": str(ROOT), "TMPDIR": os.environ["TMPDIR"]}
    with s3("data") as store:
        files = s3fs.S3FileSystem()
        files.put(str(source), "data/photos", recursive=True)
        for path in sorted((source / "coat").glob("*.jpeg"))[:2]:
            files.put(str(path), f"data/small/coat/{path.name}")
        run = subprocess.run(
            [sys.executable, "-c", COMMANDS, json.dumps(list(commands.values()))],
            cwd=root, env={**environment, **store}, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        results = json.loads(run.stdout.splitlines()[-1])
        assert (results[0]["code"], results[-1]["code"]) == (0, 3), results[0]["err"] + results[-1]["err"]
        files.get("data/records", str(root / "store"), recursive=True)
        files.get("data/few", str(root / "few"), recursive=True)
    return root, {name: Done(**each) for name, each in zip(commands, results, strict=True)}


def test_an_image_folder_becomes_records_and_bad_images_are_named(
    source: Path, photos: Path, converted: tuple[Path, dict[str, Done]]
) -> None:
    root, results = converted
    done, output = results["photos"], root / "photos"
    assert done.code == 3, done.err
    assert f"skipped {source}/bag/cut.jpeg: " in done.err
    assert f"skipped {source}/coat/notes.txt: " in done.err
    assert "130 images in 6 files" in done.out
    assert "2 skipped" in done.out
    manifest = json.loads((output / "manifest.json").read_text())
    assert [bad["path"] for bad in manifest["skipped"]] == [f"{source}/bag/cut.jpeg", f"{source}/coat/notes.txt"]
    folder = scan_images(photos, save=False)
    records = open_records(output)
    assert records.class_names == folder.class_names == tuple((output / "vocabulary.txt").read_text().split())
    assert {path.suffix for path in output.iterdir()} == {".json", ".txt", ".tfrecord"}
    for split, files in (("train", folder.train), ("test", folder.test)):
        assert records.split(split).count == len(files.paths) == manifest["splits"][split]["examples"]
        assert len(records.split(split).paths) == 3
        dataset = tfrecord_dataset(split, records=records, image=ImageOptions(height=9, width=9), batch_size=200)
        ((images, labels),) = dataset.as_numpy_iterator()
        np.testing.assert_array_equal(np.sort(labels), np.sort(files.labels))
        by_class = manifest["splits"][split]["classes"]
        assert [by_class[name] for name in records.class_names] == list(np.bincount(files.labels, minlength=10))
        assert images.max() > 0.5


def test_folders_of_an_object_store_become_the_same_records(converted: tuple[Path, dict[str, Done]]) -> None:
    root, results = converted
    assert results["small"].code == 0, results["small"].err
    assert open_records(root / "few").split("train").count == 2
    assert results["store"].code == 3, results["store"].err
    assert "skipped s3://data/photos/bag/cut.jpeg: " in results["store"].err
    stored, local = open_records(root / "store"), open_records(root / "photos")
    # Nothing of the work is left beside the files.
    assert {path.relative_to(root / "store").name for path in (root / "store").rglob("*")} == {
        path.name for path in (root / "photos").iterdir()
    }
    assert stored.class_names == local.class_names
    for split in ("train", "test"):
        assert stored.split(split).count == local.split(split).count
        # By their bytes: which file an image goes into is Beam's affair.
        contents = []
        for folder in (stored, local):
            paths = [str(path) for path in folder.split(split).paths]
            contents.append(sorted(record.numpy() for record in tf.data.TFRecordDataset(paths)))
        assert contents[0] == contents[1]


def test_bad_images_may_be_allowed_and_outputs_are_not_overwritten(converted: tuple[Path, dict[str, Done]]) -> None:
    root, results = converted
    assert results["allowed"].code == 0
    assert "130 images in 1 file," in results["allowed"].out
    assert "2 skipped" in results["allowed"].out
    assert set(open_records(root / "allowed").splits) == {"train"}
    assert results["again"].code == 2
    assert "The output photos is not empty" in results["again"].err


def test_fashion_mnist_keeps_every_pixel(subset: FashionMnist, converted: tuple[Path, dict[str, Done]]) -> None:
    root, results = converted
    assert results["fashion"].code == 0, results["fashion"].err
    assert "3,000 images in 4 files" in results["fashion"].out
    records = open_records(root / "fashion")
    assert records.split("test").size == (28, 28)
    assert records.class_names == subset.class_names
    image = ImageOptions(height=28, width=28, channels=1)
    ((images, labels),) = tfrecord_dataset("test", records=records, image=image, batch_size=1000).as_numpy_iterator()
    pixels = np.rint(images[..., 0] * 255).astype(np.uint8)
    found = {(int(label), each.tobytes()) for each, label in zip(pixels, labels, strict=True)}
    expected = {
        (int(label), each.tobytes()) for each, label in zip(subset.test_images, subset.test_labels, strict=True)
    }
    assert found == expected


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("nowhere", 1, "The source nowhere has no files"),
        ("shards", 2, "Received shards 0"),
        ("runner", 2, "Beam does not accept the options --runner=NoSuchRunner"),
        ("flag", 2, "Beam does not accept the options --shrads 3: unknown are shrads"),
        ("stray", 2, "Beam does not accept the options stray: 'stray' is no option"),
        ("vocabulary", 2, "are not in the vocabulary class_names"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(
    name: str, code: int, message: str, converted: tuple[Path, dict[str, Done]]
) -> None:
    root, results = converted
    assert (results[name].code, message in results[name].err) == (code, True), results[name].err
    assert "Traceback" not in results[name].err
    assert not (root / "out").exists()


def test_without_beam_it_says_what_to_install(run_python: RunPython) -> None:
    done = run_python(
        "import sys; sys.modules['apache_beam'] = None; from modelyard.cli import main\n"
        "sys.exit(main(['data', 'convert', 'fashion-mnist', 'out']))"
    )
    assert done.returncode == 2
    assert "pip install 'modelyard[beam]'" in done.stderr
