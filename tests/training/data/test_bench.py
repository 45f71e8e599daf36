from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from modelyard.cli import main
from modelyard.errors import ConfigurationError
from modelyard.training.data._bench import bench_input
from tests.training.toy_task import ToyTask


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELYARD_DATA", "subset")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")


def slow() -> tf.data.Dataset:
    """Batches of eight, 10 ms each: the speed is known beforehand."""

    def wait(index: np.ndarray) -> np.ndarray:
        time.sleep(0.01)
        return index

    return tf.data.Dataset.range(20).map(
        lambda index: (
            tf.zeros([8, 250]) + tf.cast(tf.numpy_function(wait, [index], tf.int64), tf.float32),
            tf.zeros([8]),
        )
    )


def test_numbers_are_those_of_the_input() -> None:
    lines: list[str] = []
    report = bench_input(slow, name="slow", seconds=1.0, rounds=2, task=ToyTask(), batch_size=8, progress=lines.append)
    speed = report.input
    assert 300 < speed.examples_per_second < 800
    assert speed.megabytes_per_second == pytest.approx(speed.examples_per_second * 251 * 4 / 1e6)
    assert 10 <= speed.p50_ms <= speed.p95_ms < 100
    assert speed.examples == 8 * speed.batches
    assert report.step == "toy"
    assert report.ratio is not None and report.ratio < 1
    assert "the input is the limit" in report.table()
    assert len(lines) == 2
    assert report.input.name == "slow"


def test_the_command_shows_a_table_and_writes_json(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Other tests have classes written into theirs.
    folder = shutil.copytree(photos, tmp_path / "photos", ignore=shutil.ignore_patterns("vocabulary.txt"))
    quick = ["--seconds", "0.3", "--rounds", "1"]
    arguments = [
        "data",
        "bench",
        str(folder),
        "--size",
        "20x24",
        "--cache",
        "memory",
        "--augment",
        "--crop",
        "0.9",
        *quick,
    ]
    assert main([*arguments, "--json", str(tmp_path / "speed.json")]) == 0
    table = capsys.readouterr().out
    assert "examples/s" in table and "p95 ms" in table
    numbers = json.loads((tmp_path / "speed.json").read_text())
    assert f"{numbers['input']['examples_per_second']:,.0f}" in table
    bytes_per_second = numbers["input"]["megabytes_per_second"] * 1e6
    assert bytes_per_second / numbers["input"]["examples_per_second"] == pytest.approx(20 * 24 * 3 * 4 + 8)
    assert not (folder / "vocabulary.txt").exists()
    assert main(["data", "bench", "fashion", "--json", "-", "--step", "tests.training.toy_task:ToyTask", *quick]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["step"] == "toy"
    assert numbers["ratio"] > 0


def test_the_input_of_a_task_whose_images_have_the_size_of_its_model(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "sized_task.py").write_text(
        "import keras\n"
        "from modelyard.training import SupervisedTask\n"
        "from modelyard.training.data import ImageFolder\n\n\n"
        "class SizedTask(SupervisedTask):\n"
        "    def __init__(self):\n"
        "        layers = [keras.Input((20, 24, 3)), keras.layers.Flatten(), keras.layers.Dense(4)]\n"
        f"        data = ImageFolder({str(folder)!r})\n"
        "        super().__init__(lambda: keras.Sequential(layers), loss='mse', train=data, test=data)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["data", "bench", "task:sized_task:SizedTask", "--seconds", "0.3", "--rounds", "1", "--json", "-"]
    assert main(arguments) == 0
    speed = json.loads(capsys.readouterr().out)["input"]
    assert speed["megabytes_per_second"] * 1e6 / speed["examples_per_second"] == pytest.approx(20 * 24 * 3 * 4 + 8)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["data", "bench", "fashion", "--seconds", "0"], 2, "Received seconds 0"),
        (["data", "bench", "nowhere"], 1, "There is no folder nowhere"),
        (["data", "bench", "PHOTOS", "--size", "28"], 2, "--size is '28'; expected height x width"),
        (["data", "bench", "fashion", "--shards", "3"], 2, "Unknown arguments --shards 3"),
        (["data", "bench", "fashion", "--split", "all"], 2, "Unknown split 'all'"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(
    arguments: list[str], code: int, message: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(photos) if each == "PHOTOS" else each for each in arguments]) == code
    assert message in capsys.readouterr().err


def test_an_empty_input_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="delivers no batches"):
        bench_input(lambda: tf.data.Dataset.range(0).batch(4), name="nothing")


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["data", "--help"])
    assert "modelyard data convert photos records" in capsys.readouterr().out
