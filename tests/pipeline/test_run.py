"""``modelyard run`` from end to end, as the demo runs it, on the shipped subset."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from modelyard.artifact import read_manifest, verify_files
from modelyard.cli import main
from modelyard.errors import VerificationError
from modelyard.pipeline import draw_predictions
from modelyard.pipeline._again import naming_the_command


def test_run_shows_every_format_over_both_protocols(tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).with_name("modelyard")), "run", "fashion", "--epochs", "1", "--calls", "20",
        "--measure-seconds", "1",
        "--repository", str(tmp_path / "repository"), "--run-dir", str(tmp_path / "run"),
    ]  # fmt: skip
    environment = {**os.environ, "MODELYARD_DATA": "subset", "TF_CPP_MIN_LOG_LEVEL": "2"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    for runtime in ("tensorflow", "onnxruntime", "litert"):
        for protocol in ("grpc", "rest"):
            rows = [line for line in result.stdout.splitlines() if runtime in line and protocol in line]
            assert len(rows) == 1, result.stdout
            assert "100.00%" in rows[0]
    version = tmp_path / "repository" / "fashion" / "1"
    manifest = read_manifest(version)
    verify_files(version, manifest)
    assert set(manifest.formats) == {"saved_model", "onnx", "tflite"}
    assert manifest.source.task == "fashion"
    assert "subset" in manifest.source.data
    assert str(version / "report.html") in result.stdout
    assert (version / "report.html").is_file()
    assert (tmp_path / "run" / "predictions.png").read_bytes().startswith(b"\x89PNG")
    # Ten images, each with its true class and six predictions.
    assert sum(line.count("│") == 8 for line in result.stdout.splitlines()) == 10


def test_an_unknown_task_names_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fashoin", "--run-dir", str(tmp_path)]) == 2
    assert "fashion" in capsys.readouterr().err


PHOTOS_TASK = re.compile(r"<!-- task: run by [^>]*-->\n\n```python\n(.*?)```", re.S)


def write_photos(root: Path, count: int) -> Path:
    """Noise in three colours, of many sizes."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for name, colour in {"red": (200, 40, 40), "green": (40, 190, 60), "blue": (40, 60, 210)}.items():
        (root / name).mkdir(parents=True)
        for index in range(count // 3):
            height, width = rng.integers(30, 90, 2)
            pixels = np.clip(np.array(colour) + rng.normal(0, 50, (height, width, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{index:03}.jpg")
    return root


def test_a_folder_of_300_colour_photos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    write_photos(tmp_path / "photos", 300)
    found = PHOTOS_TASK.search((Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8"))
    assert found is not None
    (tmp_path / "photos_task.py").write_text(found[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # main() sets it for its process; here that process is the test run.
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    quick = ["--epochs", "3", "--calls", "20", "--measure-seconds", "0.3", "--repository", "repository"]
    code = main(["run", "photos_task:PhotosTask", *quick])
    said = capsys.readouterr()
    assert code == 0, said.err
    version = tmp_path / "repository" / "photos" / "1"
    manifest = read_manifest(version)
    assert (manifest.model, manifest.source.task) == ("photos", "photos")
    assert manifest.source.metrics["test_accuracy"] > 0.9
    assert {entry.verify.examples for entry in manifest.formats.values()} == {600}
    assert re.search(r"Verified on: \d\d test and \d+ training examples; ", said.out)
    rows = [line.split("│")[1:-1] for line in said.out.splitlines() if line.count("│") == 8]
    # Spread over the classes, and every server agrees on the tensor and on the file.
    assert {row[0].strip() for row in rows} == {"red", "green", "blue"}
    assert all(len({cell.strip() for cell in row}) == 1 for row in rows)
    with Image.open(tmp_path / "demo" / "run" / "photos" / "predictions.png") as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    tile = pixels[14 : 14 + 168, 14 : 14 + 168].reshape(-1, 3).mean(axis=0)
    assert int(tile.argmax()) == ("red", "green", "blue").index(rows[0][0].strip())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["transfer", "--set", "folder=photos"], "There are 60 examples .* at least 256. .*--min-examples 60"),
        (["vae"], "cannot show the task 'vae': serving_default has no output class_id and no label. .*modelyard train"),
        (["linear"], "cannot show the task 'linear': serving_default takes .*float32"),
        (["transfer", "--set", "fold=x"], "Its arguments: "),
    ],
)
def test_what_can_be_known_before_the_training_is_told_before_it(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_photos(tmp_path / "photos", 60)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODELYARD_DATA", "subset")
    small = ["--set", "weights=none", "--set", "size=32"] if arguments[0] == "transfer" else []
    assert main(["run", *arguments, *small, "--repository", "repository", "--run-dir", "run"]) in (1, 2)
    said = capsys.readouterr()
    assert re.search(message, said.err), said.err
    assert "Training" not in said.err + said.out
    assert not (tmp_path / "run").exists() and not (tmp_path / "repository").exists()


def test_an_export_that_fails_names_the_command_that_takes_its_flags() -> None:
    command = re.escape("modelyard export 'my run' --repository models")
    with (
        pytest.raises(VerificationError, match=rf"^Random\. Use --stochastic x\. The training is kept; .*: {command}$"),
        naming_the_command(Path("my run"), Path("models")),
    ):
        raise VerificationError("Random. Use --stochastic x.")


def test_the_picture_takes_colours_and_large_images(tmp_path: Path) -> None:
    from PIL import Image

    images = np.zeros((2, 300, 400, 3), np.uint8)
    images[0, :, :, 0] = 255
    draw_predictions(tmp_path / "large.png", images, ["a", "b"], ["a", "b"])
    with Image.open(tmp_path / "large.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert pixels.shape[1] < 1000
    assert pixels[14 + 60, 14 + 80].tolist() == [255, 0, 0]
    draw_predictions(tmp_path / "grey.png", images[..., :1], ["a", "b"], ["a", "b"])


@pytest.mark.parametrize("count", [1, 10])
def test_the_picture_has_a_tile_for_each_image(tmp_path: Path, count: int) -> None:
    from PIL import Image

    images = np.arange(count * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(count, 28, 28)
    path = tmp_path / "picture.png"
    draw_predictions(path, images, ["Bag"] * count, ["Bag", "Coat"] * 5)
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    # The first tile starts at the margin and is drawn six times its size.
    assert pixels[14 + 6 * 27, 14 + 6 * 5, 0] == images[0, 27, 5]
    assert pixels.shape[0] > 200 * -(-count // 5)
