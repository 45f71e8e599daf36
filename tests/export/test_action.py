"""Export from inside a training run: the best epochs, and what a failed export costs."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from modelyard.artifact import Source, list_versions, read_manifest
from modelyard.errors import ArtifactError, ConfigurationError, ConversionError, PublishError
from modelyard.export import BestExport, ExportOptions, action
from modelyard.export.publish import _action
from modelyard.export.publish._action import RECORD_NAME
from modelyard.training import EvalResult, Evaluated, Event, Goal, Trainer, TrainerOptions
from modelyard.training.tasks import find_task

OPTIONS = ExportOptions(formats=("tflite",), min_examples=16, latency_calls=10)


def test_a_run_exports_its_best_epochs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Three epochs of a line that gets better by each; the first export cannot be written."""
    task, folder = find_task("linear")(), tmp_path / "models" / "line"
    folder.parent.mkdir()
    folder.write_text("in the way")
    best = action(task, folder, goal=Goal(metric="test_loss"), examples=32, options=OPTIONS)

    def clear_the_way(event: Event) -> None:
        if isinstance(event, Evaluated) and event.epoch == 1:
            folder.unlink()

    with caplog.at_level(logging.ERROR, "modelyard.export"):
        result = Trainer(task, TrainerOptions(epochs=3), actions=[best, clear_the_way]).run()
    assert list(best.failures) == [16] and "step 16 has the best test_loss so far" in caplog.text
    assert [report.version.number for report in best.reports] == [1, 2]
    for epoch, version in zip(result.history[1:], list_versions(folder), strict=True):
        source = read_manifest(version.path).source
        assert source.metrics["test_loss"] == pytest.approx(epoch.evaluation["loss"])
        assert (source.task, source.config["epoch"]) == ("linear", epoch.epoch)
    record = json.loads((folder / RECORD_NAME).read_text())
    assert record == {"metric": "test_loss", "mode": "min", "value": result.history[-1].evaluation["loss"]}

    # Another run goes on with the record: what is no better is not exported.
    again = action(find_task("linear")(), folder, goal=Goal(metric="test_loss"), examples=32, options=OPTIONS)
    assert not again.test(record["value"]) and again.test(record["value"] - 1e-6)


def test_what_is_no_better_is_not_exported_and_a_failed_export_is_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, exported = find_task("linear")(), list[float]()
    best = action(task, tmp_path, goal=Goal(metric="test_loss"))

    def export(*arguments: Any, source: Source, **options: Any) -> Any:
        exported.append(source.metrics["test_loss"])
        if exported[-1] == 2.0:
            raise ConversionError("It cannot be converted.")

    monkeypatch.setattr(_action, "export_task", export)
    for epoch, loss in enumerate((3.0, 4.0, 2.0, math.nan, 2.5, 2.5, 2.6, 1.0), 1):
        result = EvalResult(
            epoch=epoch, step=epoch, train={"loss": 1.0}, evaluation={"loss": loss}, seconds=1.0, eval_seconds=1.0,
            examples_per_second=1.0,
        )  # fmt: skip
        best(Evaluated(task="linear", step=epoch, epoch=epoch, max_steps=8, steps_per_epoch=1, result=result))
    assert exported == [3.0, 2.0, 2.5, 1.0]
    assert (len(best.reports), best.failures) == (3, {3: "It cannot be converted."})


def test_the_record(tmp_path: Path) -> None:
    best = BestExport(find_task("linear")(), tmp_path, goal=Goal(metric="test_accuracy", mode="max"))
    assert best.test(0.5) and not best.test(math.nan)
    # To ask costs nothing; to commit does.
    assert best.test(0.5)
    best.commit(0.5)
    assert not best.test(0.5) and best.test(0.6)
    assert BestExport(find_task("linear")(), tmp_path, goal=Goal(metric="test_other")).test(0.1)
    assert BestExport(find_task("linear")(), tmp_path, goal="-test_loss").goal == Goal(metric="test_loss", mode="min")
    (tmp_path / RECORD_NAME).write_text("{")
    with pytest.raises(ArtifactError, match="Remove it to begin anew"):
        best.test(0.7)
    with pytest.raises(PublishError, match=r"Cannot write .*\.best\.json"):
        BestExport(find_task("linear")(), tmp_path / "absent").commit(0.5)


def test_a_metric_that_is_not_there_and_a_strict_action(tmp_path: Path) -> None:
    task = find_task("linear")()
    with pytest.raises(ConfigurationError, match="evaluation has no 'test_accuracy'; it has test_b, test_loss, test_w"):
        Trainer(task, TrainerOptions(epochs=1), actions=[action(task, tmp_path / "m")]).run()
    (tmp_path / "file").write_text("")
    task = find_task("linear")()
    strict = action(task, tmp_path / "file", goal=Goal(metric="test_loss"), examples=32, options=OPTIONS, strict=True)
    with pytest.raises(ArtifactError):
        Trainer(task, TrainerOptions(epochs=1), actions=[strict]).run()
