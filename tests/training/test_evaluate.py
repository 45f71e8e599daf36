"""Evaluation and prediction without a run."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from modelyard.artifact import EncodedImageFunction, SignatureFunction, TensorSpec, VerificationData
from modelyard.cli import main
from modelyard.errors import ConfigurationError, ImageDecodeError, TrainingError
from modelyard.training import SupervisedTask, Trainer, TrainerOptions, evaluate, predict, restore
from tests.training.toy_task import EXAMPLES, WIDTH, ToyTask


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


class ServedToy(ToyTask):
    """The toy with two signatures: from its six numbers, and from the first six pixels of an image."""

    def signatures(self) -> Mapping[str, SignatureFunction | EncodedImageFunction]:
        def serve(x: Any) -> dict[str, Any]:
            y = self.model(x, training=False)[:, 0]
            return {"y": y, "label": tf.where(y > 1.0, "grün", "red")}

        def end(x: Any) -> dict[str, Any]:
            return {"raw": tf.where(x[:, 0] > 0.0, "a\0", "b")}

        spec = TensorSpec(name="x", dtype="float32", shape=(-1, WIDTH))
        return {
            "serving_default": SignatureFunction(inputs=(spec,), function=serve),
            "raw": SignatureFunction(inputs=(spec,), function=end),
            "image_bytes": EncodedImageFunction(
                compute="serving_default", preprocess=lambda pixels: np.float32(pixels[0, :WIDTH, 0]) / 255, channels=1
            ),
        }

    def verification_data(self, count: int) -> VerificationData:
        return VerificationData(inputs={"serving_default": {"x": self.features[:count]}})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    Trainer(ServedToy(), TrainerOptions(max_steps=8, eval_every_steps=4, batch_size=8, model_dir=folder)).run()
    return folder


def test_the_numbers_are_those_of_the_run(run: Path) -> None:
    result = restore(run)
    assert evaluate(result.task)["test_loss"] == pytest.approx(result.metrics["test_loss"], rel=1e-6)
    some = evaluate(result.task, batch_size=10, steps=2)["test_loss"]
    task: Any = result.task
    predicted = predict(task, {"x": task.features[:20]}, batch_size=7)["y"]
    assert some == pytest.approx(np.mean((predicted - task.targets[:20]) ** 2), rel=1e-5)
    with pytest.raises(ConfigurationError, match="eval_steps is 0"):
        evaluate(result.task, steps=0)


def test_predictions_of_arrays_images_and_examples(run: Path) -> None:
    task: Any = restore(run).task
    expected = np.asarray(task.model(task.features, training=False))[:, 0]
    np.testing.assert_allclose(predict(task)["y"], expected, rtol=1e-5)
    pixels = np.arange(WIDTH * 8, dtype=np.uint8).reshape(8, WIDTH)
    found = predict(task, {"image_bytes": np.array([png(pixels)] * 3, dtype=object)}, signature="image_bytes")["y"]
    np.testing.assert_allclose(found, np.asarray(task.model(pixels[:1].astype(np.float32) / 255))[0, 0], rtol=1e-5)
    with pytest.raises(ConfigurationError, match="inputs z for the signature 'serving_default'"):
        predict(task, {"z": expected})
    with pytest.raises(ConfigurationError, match="signature 'other'"):
        predict(task, {"x": expected}, signature="other")
    for bad in (task.features[:, :3], np.full_like(task.features, "red", dtype=object), task.features[0]):
        with pytest.raises(ConfigurationError, match=rf"input 'x' is \S+ \[.*; expected float32 \(None, {WIDTH}\)"):
            predict(task, {"x": bad})
    for empty in (task.features[:0], np.array(1.0)):
        with pytest.raises(ConfigurationError, match="numbers of examples: {'x': 0}; expected at least one"):
            predict(task, {"x": empty})
    with pytest.raises(ConfigurationError, match=r"batch_size \(--batch-size\) is 0; expected a whole number >= 1"):
        predict(task, batch_size=0)
    with pytest.raises(ImageDecodeError, match="4 bytes are not a complete image"):
        predict(task, {"image_bytes": np.array([b"text"], dtype=object)}, signature="image_bytes")
    with pytest.raises(ConfigurationError, match="The inputs are a ndarray; expected arrays by input name"):
        predict(task, task.features)
    with pytest.raises(ConfigurationError, match="input 'x' is list of rows that are not equally long"):
        predict(task, {"x": [[1.0], [1.0, 2.0]]})  # type: ignore[dict-item]
    with pytest.raises(ConfigurationError, match="numbers of examples: {'x': 0}"):
        predict(task, {"x": None})  # type: ignore[dict-item]


@pytest.mark.parametrize("call", [Trainer, predict, evaluate, lambda task: restore("none", task)])
def test_what_is_no_task_is_refused_by_its_type(call: Any, run: Path) -> None:
    with pytest.raises(ConfigurationError, match="The task is a TrainResult; expected a Task, .* or the .task of"):
        call(restore(run))
    with pytest.raises(ConfigurationError, match="The task is the class ServedToy; expected a Task"):
        call(ServedToy)


@pytest.mark.parametrize("call", [predict, evaluate])
def test_a_task_that_is_not_built_is_an_error(call: Any) -> None:
    task = SupervisedTask(lambda: None, loss="mse", train=None, test=None)
    with pytest.raises(TrainingError, match=r"no model yet; call build\(\), run a Trainer, or restore\(\) first"):
        call(task)


def test_a_goal_that_no_evaluation_has_is_an_error(run: Path) -> None:
    with pytest.raises(ConfigurationError, match="The evaluation has no 'test_accuracy'; it has test_loss"):
        restore(run, goal="test_accuracy")


def test_the_commands(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task: Any = restore(run).task
    assert main(["evaluate", str(run)]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers == {"step": 8, "test_loss": pytest.approx(evaluate(task)["test_loss"])}
    assert main(["evaluate", str(run), "--best=-test_loss", "--eval-steps", "1", "--eval-batch-size", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 8
    expected = predict(task, {"x": task.features})
    assert set(expected["label"]) == {"grün".encode(), b"red"}
    np.savez(tmp_path / "in.npz", x=task.features)
    out = tmp_path / "new" / "folder" / "out.npz"
    for extra in (["--data", str(tmp_path / "in.npz")], []):
        assert main(["infer", str(run), *extra, "--output", str(out)]) == 0
        with np.load(out, allow_pickle=False) as written:
            np.testing.assert_array_equal(written["y"], expected["y"])
            assert written["label"].tolist() == expected["label"].tolist()
    assert f"y [{EXAMPLES}]" in capsys.readouterr().out
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(png(np.zeros((2, WIDTH), np.uint8)))
    # As ImageFolder writes it.
    (tmp_path / "images" / "vocabulary.txt").write_text("coat\nshoe\n")
    images = ["infer", str(run), "--data", str(tmp_path / "images"), "--output", str(tmp_path / "labels.npz")]
    assert main([*images, "--signature", "image_bytes"]) == 0
    saved = np.load(tmp_path / "labels.npz")
    assert saved["files"].tolist() == [str(tmp_path / "images" / "a.png")] and saved["y"].shape == (1,)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["evaluate", "{tmp}"], 2, "has no run.json; expected the folder of a run"),
        (["evaluate", "{run}", "--eval-batch-size", "0"], 2, "eval_batch_size is 0; expected a whole number >= 1"),
        (["infer", "{run}", "--output", "x.txt"], 2, "--output is x.txt; expected a file name that ends in .npz"),
        (["infer", "{run}", "--output", "x.npz", "--data", "absent.npz"], 2, "--data is absent.npz; expected"),
        (["infer", "{run}", "--output", "{tmp}/x.npz", "--data", "{tmp}/none"], 2, "a folder without files"),
        (["infer", "{run}", "--output", "{tmp}/file/x.npz"], 2, "file/x.npz, whose folder cannot be made"),
        (["infer", "{run}", "--output", "{tmp}/taken.npz"], 1, "taken.npz cannot be written"),
        (
            ["infer", "{run}", "--output", "{tmp}/x.npz", "--data", "{tmp}/text.npz"],
            2,
            "text.npz, which cannot be read",
        ),
        (["infer", "{run}", "--output", "{tmp}/x.npz", "--data", "{tmp}/objects.npz"], 2, "without dtype=object"),
        (["infer", "{run}", "--output", "{tmp}/x.npz", "--data", "{tmp}/one.npz"], 2, "one.npz, which cannot be read"),
        (
            ["infer", "{run}", "--output", "{tmp}/x.npz", "--data", "{tmp}/empty.npz"],
            2,
            "expected at least one in each",
        ),
        (["infer", "{run}", "--output", "{tmp}/x.npz", "--data", "{tmp}/x.npz", "--signature", "raw"], 1, "with NUL"),
    ],
)
def test_mistakes_on_the_command_line(
    arguments: list[str], code: int, message: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("none", "taken.npz"):
        (tmp_path / folder).mkdir()
    for name in ("file", "text.npz"):
        (tmp_path / name).write_text("no zip")
    for name, rows in (("x", np.ones([2, WIDTH])), ("empty", np.ones([0, WIDTH])), ("objects", np.array([{}]))):
        np.savez(tmp_path / f"{name}.npz", x=rows)
    with (tmp_path / "one.npz").open("wb") as file:
        np.save(file, np.ones([2, WIDTH]))
    assert main([each.format(run=run, tmp=tmp_path) for each in arguments]) == code
    assert message in capsys.readouterr().err
