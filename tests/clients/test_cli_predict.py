"""``modelyard predict`` against a served classifier, with real images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modelyard.cli import main
from modelyard.clients import RowResult, connect
from modelyard.clients.cli._sinks import Lines
from modelyard.errors import InvalidRequestError
from modelyard.training.data import FashionMnist
from tests.clients.conftest import url_of
from tests.support.server import RunningServer, free_port


@pytest.fixture
def images(tmp_path: Path, fashion: FashionMnist) -> list[Path]:
    paths = [tmp_path / f"image {index}.png" for index in range(3)]
    for path, pixels in zip(paths, fashion.test_images, strict=False):
        Image.fromarray(pixels).save(path)
    return paths


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_prints_a_line_per_file(
    fashion_server: RunningServer,
    fashion: FashionMnist,
    images: list[Path],
    transport: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = url_of(fashion_server, transport)
    assert main(["predict", "fashion", *map(str, images), "--server", url]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    batch = (fashion.test_images[:3, ..., None] / np.float32(255)).astype(np.float32)
    with connect(url) as client:
        expected = client.predict("fashion", {"image": batch})
    assert [line[0] for line in lines] == [str(path) for path in images]
    assert [line[1] for line in lines] == [label.decode() for label in expected["label"]]
    assert [float(line[2]) for line in lines] == pytest.approx(expected["probabilities"].max(axis=1), abs=1e-4)


def test_a_bad_file_does_not_stop_the_others(
    fashion_server: RunningServer, images: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truncated, absent = tmp_path / "truncated.png", tmp_path / "absent.png"
    truncated.write_bytes(images[0].read_bytes()[:100])
    files = [str(truncated), str(absent), str(images[0])]
    assert main(["predict", "fashion", *files, "--server", url_of(fashion_server, "grpc"), "--version", "1"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{images[0]}\t")
    assert captured.out.count("\n") == 1
    assert "not a complete image" in captured.err
    assert "absent.png" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fashion", "--signature", "nope"], "has no signature 'nope'; it has image_bytes, serving_default"),
        (["fashion", "--signature", "serving_default"], "takes image (float32); expected one string input"),
        (["shoes"], "Servable not found"),
        (["fashion", "--version", "9"], "9"),
    ],
)
def test_errors_name_the_cure(
    fashion_server: RunningServer,
    images: list[Path],
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, *options = arguments
    url = url_of(fashion_server, "grpc")
    assert main(["predict", model, str(images[0]), "--server", url, *options]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_a_protocol_that_describes_one_signature(
    fashion_server: RunningServer, images: list[Path], protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = url_of(fashion_server, protocol).replace("://", "+v2://")
    assert main(["predict", "fashion", str(images[0]), "--server", url]) == 1
    said = capsys.readouterr().err
    assert "The Open Inference Protocol describes serving_default of model 'fashion', and no signature 'image_b" in said
    assert "by a URL without +v2" in said


def test_no_server(images: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert main(["predict", "fashion", str(images[0]), "--server", url]) == 1
    assert f"{url}/v1/models/fashion/metadata cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize(
    "outputs",
    [
        {"class_id": np.array(7), "probabilities": np.ones(3)},
        {"class_id": np.array([1, 2]), "probabilities": np.ones(3)},
        {"class_id": np.array(b"x", object), "probabilities": np.ones(3)},
        {"class_id": np.array(0), "probabilities": np.array(1.0)},
        {"class_id": np.array(0), "probabilities": np.ones((3, 2))},
        {"class_id": np.array(1), "label": np.array([b"a", b"b"], object), "probabilities": np.ones(3)},
    ],
)
def test_a_classifier_of_another_kind_is_told(outputs: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=r"received class_id .*\. Choose a form with --output\."):
        Lines().write("a.png", RowResult(index=0, outputs=outputs, error=None))


def test_a_model_that_is_no_classifier(
    server: RunningServer, images: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["predict", "half", str(images[0]), "--server", url_of(server, "grpc"), "--signature", "strings"]
    assert main(arguments) == 1
    assert "returns length, raw_bytes, upper; a classifier also returns class_id" in capsys.readouterr().err
