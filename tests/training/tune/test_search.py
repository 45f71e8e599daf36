"""Searches with real processes, which are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from PIL import Image

from modelyard.cli import main
from modelyard.errors import ConfigurationError, TrainingError
from modelyard.training import Trainer, TrainerOptions
from modelyard.training.tune import Parameter, TuneOptions, search
from modelyard.training.tune._study import CONTINUES, counted, open_study
from modelyard.training.tune._trial import run_trial
from tests.training.conftest import ROOT
from tests.training.toy_task import ToyTask

TOY = "tests.training.toy_task:ToyTask"
SPACE = (Parameter(name="learning_rate", kind="float", low=0.001, high=0.1, log=True),)
EPOCHS = 15


def command(folder: Path) -> list[str]:
    code = "import sys; from modelyard.cli import main; sys.exit(main(sys.argv[1:]))"
    flags = ["--float", "learning_rate=0.001:0.1:log", "--metric", "test_loss", "--direction", "minimize"]
    numbers = ["--trials", "3", "--jobs", "2", "--epochs", str(EPOCHS), "--startup-trials", "9"]
    return [sys.executable, "-c", code, "tune", TOY, *flags, *numbers, "--no-export", "--study-dir", str(folder)]


def test_a_killed_search_goes_on_and_loses_nothing(tmp_path: Path) -> None:
    killed = subprocess.Popen(command(tmp_path), cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    if killed.stderr is None:
        pytest.fail("no stderr")
    started = set()
    for line in killed.stderr:
        words = line.split()
        if words[2:3] == ["starts:"]:
            started.add(words[1])
        if len(started) == 2 and words[2:4] == ["epoch", f"5/{EPOCHS}:"]:
            break
    workers = psutil.Process(killed.pid).children()
    killed.send_signal(signal.SIGKILL)
    killed.wait(30)
    killed.stderr.close()
    assert len(workers) == 2
    assert psutil.wait_procs(workers, timeout=30)[1] == []
    done = subprocess.run(command(tmp_path), cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "was lost with its process" in done.stderr
    assert "Best of 3 trials (3 complete, 0 pruned, 0 failed)" in done.stdout
    study = open_study(TuneOptions(task=TOY, study_dir=tmp_path, direction="minimize"))
    trials = counted(study)
    gone_on = [trial for trial in trials if CONTINUES in trial.user_attrs]
    assert 1 <= len(gone_on) <= 2
    # The other had perhaps not ended an epoch.
    lost, again = max(
        ((study.trials[trial.user_attrs[CONTINUES]], trial) for trial in gone_on),
        key=lambda pair: len(pair[0].intermediate_values),
    )
    assert again.params == lost.params
    assert 0 < len(lost.intermediate_values) < EPOCHS
    # Nothing was trained twice, and the numbers are those of a run that nobody killed.
    whole = Trainer(ToyTask(learning_rate=lost.params["learning_rate"]), TrainerOptions(epochs=EPOCHS)).run()
    assert again.value == whole.metrics["test_loss"]
    assert again.intermediate_values == {each.epoch: each.evaluation["loss"] for each in whole.history}
    epochs = [line for line in done.stderr.splitlines() if line.startswith(f"trial {again.number} epoch")]
    assert len(epochs) < EPOCHS
    best = json.loads((tmp_path / "best.json").read_text())
    assert best["test_loss"] == min(trial.value or 9e9 for trial in trials)
    with Image.open(tmp_path / "trials.png") as plot:
        assert plot.width > 600


def test_a_trial_whose_process_dies_goes_on_in_another(tmp_path: Path) -> None:
    lines: list[str] = []

    def watch(line: str) -> None:
        lines.append(line)
        if line.startswith("trial 0 epoch 2/"):
            # Other tests of this process may have left children of theirs.
            running = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
            (child,) = (each for each in running if str(tmp_path) in " ".join(each.cmdline()))
            os.kill(child.pid, signal.SIGKILL)

    options = TuneOptions(
        task=TOY, study_dir=tmp_path, trials=1, epochs=EPOCHS, metric="test_loss", direction="minimize", space=SPACE
    )
    result = search(options, watch)
    assert (result.complete, result.pruned, result.failed) == (1, 0, 0)
    assert result.model_dir == tmp_path / "trials" / "00000"
    assert any("trial 0 lost its process (code -9)" in line for line in lines)
    assert any(line.endswith("going on with trial 0") for line in lines)
    # Nothing is left to do, and nothing is done.
    assert search(options).number == result.number


def test_a_mistake_in_the_command_ends_the_search(tmp_path: Path) -> None:
    options = TuneOptions(task=TOY, study_dir=tmp_path, epochs=1, metric="speed", space=SPACE)
    with pytest.raises(ConfigurationError, match="The metric is 'speed'; the task reports loss, test_loss"):
        search(options)
    # The corrected command may use the same folder.
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "worker-0.log"}


def test_no_trial_that_went_to_the_end_is_an_error(tmp_path: Path) -> None:
    wild = (Parameter(name="learning_rate", kind="float", low=1e30, high=1e31),)
    options = TuneOptions(task=TOY, study_dir=tmp_path, trials=1, metric="test_loss", direction="minimize", space=wild)
    run_trial(options, lambda message: None, order=0)
    with pytest.raises(TrainingError, match=r"None of the 1 trials went to the end\. The .* of task 'toy'"):
        search(options)


def test_the_best_trial_is_exported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELYARD_DATA", "subset")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    arguments = ["tune", "fashion", "--trials", "1", "--epochs", "1", "--study-dir", str(tmp_path)]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "Best of 1 trials" in out
    version = tmp_path / "repository" / "fashion" / "1"
    assert f"Exported: {version}" in out
    manifest = json.loads((version / "manifest.json").read_text())
    best = json.loads((tmp_path / "best.json").read_text())
    assert manifest["source"]["config"]["learning_rate"] == best["values"]["learning_rate"]
    assert manifest["source"]["metrics"]["test_accuracy"] == best["test_accuracy"]
    assert main(arguments) == 0
    assert f"Exported before: {version}" in capsys.readouterr().out
    assert main([*arguments, "--epochs", "2"]) == 2
    assert "has epochs 1; this one has 2" in capsys.readouterr().err


def test_wrong_usage_is_an_error_and_help_has_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "fashon", "--study-dir", str(tmp_path)]) == 2
    assert "Did you mean 'fashion'" in capsys.readouterr().err
    assert main(["tune", "fashion", "--float", "rate", "--study-dir", str(tmp_path)]) == 2
    assert "Received --float rate" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["tune", "--help"])
    assert "modelyard tune fashion --trials 30" in capsys.readouterr().out
