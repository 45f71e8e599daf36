"""A run knows what it was made of, and can be made again."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

import modelyard.cli
from modelyard.artifact import git_commit
from modelyard.errors import CheckpointError, ConfigurationError
from modelyard.training import (
    Event,
    Goal,
    RunRecord,
    RunStarted,
    SupervisedTask,
    Trainer,
    TrainerOptions,
    evaluate,
    read_record,
    restore,
)
from modelyard.training.cli import main
from modelyard.training.data import ImageFolder, ImageOptions
from tests.training.toy_task import ToyTask, same_values

OPTIONS = TrainerOptions(max_steps=4, batch_size=8, seed=3, keep_best=None)


class ObjectTask(ToyTask):
    """A task that was given something that JSON cannot hold."""

    def __init__(self, *, values: Any = None, folder: Path = Path("x"), sizes: tuple[int, ...] = (1, 2)) -> None:
        super().__init__()
        self.given = (values, folder, sizes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[ToyTask, Path]:
    task, folder = ToyTask(units=7), tmp_path_factory.mktemp("identity") / "run"
    Trainer(task, replace(OPTIONS, model_dir=folder, keep_best=Goal(), steps_per_loop=2)).run()
    return task, folder


@pytest.fixture
def run(trained: tuple[ToyTask, Path], tmp_path: Path) -> tuple[ToyTask, Path]:
    """A task after its run, and the run's folder, which is the test's own."""
    return trained[0], shutil.copytree(trained[1], tmp_path / "run")


def test_a_run_says_what_it_was_made_of(run: tuple[ToyTask, Path]) -> None:
    document = json.loads((run[1] / "run.json").read_text())
    assert document["task"] == "toy"
    assert document["made_by"] == "tests.training.toy_task:ToyTask"
    assert document["arguments"] == {"units": 7}
    assert document["options"]["max_steps"] == 4
    assert document["data"] == {
        "description": "44 made-up examples", "steps_per_epoch": 6, "batch": "float32 [?, 6], float32 [?]",
    }  # fmt: skip
    assert {"python", "tensorflow", "keras", "numpy", "modelyard"} == set(document["packages"])
    assert len(document["git"].removesuffix("-dirty")) == 40


def test_a_run_is_made_again_without_its_arguments(run: tuple[ToyTask, Path]) -> None:
    task, folder = run
    restored = restore(folder)
    assert isinstance(restored.task, ToyTask)
    assert same_values(restored.task, task)
    assert restored.identity["arguments"] == {"units": 7}
    assert restored.source().config["run"]["arguments"] == {"units": 7}
    # It goes on, and ends as one that was never stopped.
    went_on = Trainer.resume(folder, max_steps=9).run()
    assert (went_on.resumed_from, went_on.step) == (4, 9)
    whole = ToyTask(units=7)
    Trainer(whole, replace(OPTIONS, max_steps=9)).run()
    assert same_values(went_on.task, whole)


def test_a_difference_is_told_before_anything_is_overwritten(run: tuple[ToyTask, Path]) -> None:
    folder, seen = run[1], list[tuple[tuple[str, ...], RunRecord | None]]()

    def look(event: Event) -> None:
        if isinstance(event, RunStarted):
            seen.append((event.notes, read_record(folder)))

    Trainer.resume(folder, [look], max_steps=5).run()
    notes, before = seen[0]
    assert notes == ("The option max_steps was 4 and is 5 now.",)
    assert before is not None and before.options["max_steps"] == 4
    after = read_record(folder)
    assert after is not None and after.options["max_steps"] == 5
    with pytest.raises(CheckpointError, match="does not fit the task: .*argument units was 7 and is 9 now"):
        Trainer(ToyTask(units=9), after.make_options(folder)).run()
    assert read_record(folder) == after


def test_arguments_of_any_plain_kind_come_back(tmp_path: Path) -> None:
    options = replace(OPTIONS, model_dir=tmp_path)
    Trainer(ObjectTask(values={"a": [1, None, 0.5]}, folder=Path("y"), sizes=(3,)), options).run()
    again = restore(tmp_path).task
    assert isinstance(again, ObjectTask)
    assert again.given == ({"a": [1, None, 0.5]}, Path("y"), (3,))


def test_what_cannot_be_written_down_is_asked_for(tmp_path: Path) -> None:
    task = ObjectTask(values=np.zeros(3))
    Trainer(task, replace(OPTIONS, model_dir=tmp_path)).run()
    with pytest.raises(ConfigurationError, match=r"given values \(numpy.ndarray\), which cannot be written down"):
        restore(tmp_path)
    assert same_values(restore(tmp_path, ObjectTask(values=np.zeros(3))).task, task)


def test_what_keras_writes_half_down_is_asked_for(tmp_path: Path) -> None:
    """Its configuration of some losses and metrics lacks what their function is called with."""
    whole = [
        keras.losses.Huber(),
        keras.metrics.CosineSimilarity(),
        keras.metrics.MeanIoU(2),
        keras.losses.Dice(axis=1),
    ]
    half = [keras.losses.Huber(delta=5.0), keras.metrics.CosineSimilarity(axis=0), keras.losses.Dice(dtype="float64")]
    Trainer(ObjectTask(values=whole), replace(OPTIONS, model_dir=tmp_path / "whole")).run()
    assert restore(tmp_path / "whole").task.given[0][0].get_config() == whole[0].get_config()
    for number, value in enumerate(half):
        Trainer(ObjectTask(values=[value]), replace(OPTIONS, model_dir=tmp_path / str(number))).run()
        with pytest.raises(ConfigurationError, match=r"given values \(.*\), which cannot be written down"):
            restore(tmp_path / str(number))


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ({"made": {"by": "os:mkdir", "arguments": {"path": "FOLDER"}}}, "os:mkdir is no class of what a run has"),
        ({"made": {"by": "subprocess:Popen", "arguments": {"args": "FOLDER"}}}, "subprocess:Popen is no class of what"),
        ({"name": "os:mkdir"}, "os:mkdir is no function or class"),
    ],
)
def test_a_run_s_file_calls_nothing_but_what_runs_have(
    run: tuple[ToyTask, Path], tmp_path: Path, argument: dict[str, Any], reason: str
) -> None:
    file = run[1] / "run.json"
    document = json.loads(file.read_text())
    text = json.dumps({**document, "arguments": {"hostile": argument}})
    file.write_text(text.replace("FOLDER", str(tmp_path / "made")))
    with pytest.raises(ConfigurationError, match=reason):
        restore(run[1])
    assert not (tmp_path / "made").exists()


def test_a_task_that_is_not_there_and_a_folder_that_says_nothing(
    run: tuple[ToyTask, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    file = run[1] / "run.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "made_by": "no_such_module:Task"}))
    with pytest.raises(ConfigurationError, match="no_such_module:Task cannot be imported from here.*toy_task.py"):
        restore(run[1])
    file.write_text(json.dumps({**document, "made_by": "os:getcwd"}))
    with pytest.raises(ConfigurationError, match="os:getcwd, is no subclass of Task"):
        restore(run[1])
    file.write_text(json.dumps({**document, "made_by": "__main__:Photos", "file": "/home/me/train.py"}))
    command = ["export", str(run[1]), "--repository", str(run[1].parent)]
    assert modelyard.cli.main(command) == 2
    said = capfd.readouterr().err
    assert "Photos, cannot be made again: it was defined in a script (/home/me/train.py)" in said
    assert "restore(model_dir, task).export(destination)" in said
    assert "modelyard export train:Photos --model-dir RUN" in said
    file.write_text(json.dumps({**document, "version": 9}))
    with pytest.raises(CheckpointError, match="version 9, where this modelyard reads 1"):
        restore(run[1])
    file.unlink()
    with pytest.raises(CheckpointError, match="does not say which task it is of; pass the task"):
        restore(run[1])
    with pytest.raises(CheckpointError, match="does not say which task it is of"):
        Trainer.resume(run[1])


def test_the_command_goes_on_with_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "line")
    assert main(["linear", "--set", "learning_rate=0.05", "--model-dir", folder, "--max-steps", "3"]) == 0
    capsys.readouterr()
    assert main([folder, "--max-steps", "6", "--eval-every", "2", "--log-every", "1", "--eval-steps", "1"]) == 0
    out, err = capsys.readouterr()
    assert "linear: 6 epochs, 6 steps." in out
    assert "The option max_steps was 3 and is 6 now." in err
    record = read_record(tmp_path / "line")
    assert record is not None
    assert (record.arguments, record.options["eval_every_steps"]) == ({"learning_rate": 0.05}, 2)
    assert main([folder, "--full"]) == 2
    assert "--full is for a task's name" in capsys.readouterr().err


def pictures(folder: Path) -> ImageFolder:
    for label, value in (("dark", 20), ("light", 220)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number in range(6):
            Image.fromarray(np.full((8, 8, 3), value + number, np.uint8)).save(folder / label / f"{number}.png")
    return ImageFolder(folder, image=ImageOptions(height=8, width=8))


def make_network() -> keras.Model:
    return keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2)])


def supervised(folder: Path, model: Any, **changes: Any) -> SupervisedTask:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.01, 10))
    given = {"loss": loss, "optimizer": optimizer, "metrics": ["accuracy"], **changes}
    return SupervisedTask(model, train=pictures(folder), test=pictures(folder), name="shades", **given)


@pytest.mark.parametrize("make", [lambda: make_network, make_network], ids=["function", "model"])
def test_a_task_without_a_class_is_made_again(tmp_path: Path, make: Any) -> None:
    first = Trainer(supervised(tmp_path / "data", make()), replace(OPTIONS, model_dir=tmp_path / "run")).run()
    restored = restore(tmp_path / "run")
    assert isinstance(restored.task, SupervisedTask)
    assert restored.task.name == "shades"
    for one, other in zip(first.task.models["model"].weights, restored.task.models["model"].weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert evaluate(restored.task) == {name: first.metrics[name] for name in ("test_loss", "test_accuracy")}
    # What Keras counts is no difference, and what is one is said without all that a model is made of.
    events: list[Any] = []
    again = supervised(
        tmp_path / "data", make(), optimizer=keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.5, 10))
    )
    Trainer(again, replace(OPTIONS, model_dir=tmp_path / "run"), [events.append]).run()
    assert [note for note in events[0].notes if "argument" in note] == [
        "The task's argument optimizer is another SGD now."
    ]
    assert events[0].identity["arguments"]["optimizer"] == {"keras": "SGD"}
    # The script that made it is what its commit is of; a notebook, and a worker of pytest-xdist, has none.
    script = getattr(sys.modules["__main__"], "__file__", None)
    assert restored.source().git_commit == ("" if script is None else git_commit(Path(script)))


def made_by_hand(record: RunRecord, model: Any) -> RunRecord:
    return replace(record, objects={}, arguments={**record.arguments, "model": model})


def test_what_a_task_without_a_class_cannot_be_made_of_again_is_named(tmp_path: Path) -> None:
    def local(labels: Any, outputs: Any) -> Any:
        return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)

    task = supervised(tmp_path / "data", make_network, loss=local)
    Trainer(task, replace(OPTIONS, model_dir=tmp_path / "run")).run()
    with pytest.raises(ConfigurationError, match=r"was given loss \(.*<locals>.local\), which cannot be written down"):
        restore(tmp_path / "run")
    assert restore(tmp_path / "run", task).step == 4
    record = read_record(tmp_path / "run")
    assert record is not None
    with pytest.raises(ConfigurationError, match="made again: no_such_module:make cannot be imported from here"):
        replace(
            record, objects={}, arguments={**record.arguments, "model": {"name": "no_such_module:make"}}
        ).make_task()
    broken = {"keras": {"module": "keras", "class_name": "NoModel", "config": {}, "registered_name": "NoModel"}}
    with pytest.raises(ConfigurationError, match="Keras cannot make the NoModel of this run again"):
        made_by_hand(record, broken).make_task()
