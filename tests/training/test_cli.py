from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from modelyard.training.cli import main
from modelyard.training.tasks import find_task, tasks
from tests.support.wandb_files import wandb_history
from tests.training.conftest import ROOT


@pytest.fixture(autouse=True)
def small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELYARD_DATA", "subset")
    # main() sets it for its process; here that process is the test run.
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")


def test_it_trains_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fashion", "--model-dir", str(tmp_path), "--batch-size", "200", "--seed", "4"]
    assert main([*arguments, "--epochs", "1", "--checkpoint-every", "4", "--keep-checkpoints", "2"]) == 0
    out, err = capsys.readouterr()
    assert "fashion: 1 epoch, 10 steps. accuracy 0." in out
    assert "Data: small subset shipped with modelyard, 2,000 + 1,000 images." in out
    assert "Epoch 1/1  accuracy" in err
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["step-000000008", "step-000000010"]
    assert list((tmp_path / "tensorboard" / "train").glob("events.*"))
    assert main([*arguments, "--epochs", "2", "--set", "learning_rate=0.5", "--eval-batch-size", "300"]) == 0
    out, err = capsys.readouterr()
    assert "fashion: 2 epochs, 20 steps." in out
    assert "The learning rate of 'optimizer' is 0.001, from the checkpoint step-000000010; 0.5 is not used." in err
    assert "going on from step 10" in err
    steps = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    assert main([str(tmp_path), "--max-steps", "3", "--set", "learning_rate=0.5"]) == 0
    assert capsys.readouterr().out.startswith("Already at step 20; nothing to train.")


def test_errors_are_one_line_and_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(find_task("linear"), "recipe", {"epoch": 3})
        assert main(["linear", "--model-dir", str(tmp_path / "linear")]) == 2
    assert capsys.readouterr().err == "modelyard train: TrainerOptions has no field 'epoch'; did you mean 'epochs'?\n"
    assert main(["fashon"]) == 2
    assert capsys.readouterr().err == (
        f"modelyard train: Unknown task 'fashon'. Did you mean 'fashion'? Known tasks: {', '.join(tasks())}.\n"
    )
    assert main(["fashion", "--epochs", "0"]) == 2
    assert capsys.readouterr().err == "modelyard train: epochs is 0; expected a whole number >= 1.\n"
    assert main(["fashion", "--eval-batch-size", "0"]) == 2
    assert capsys.readouterr().err == "modelyard train: eval_batch_size is 0; expected a whole number >= 1.\n"
    (tmp_path / "checkpoints" / "step-000000007").mkdir(parents=True)
    assert main(["fashion", "--model-dir", str(tmp_path)]) == 1
    assert "step-000000007 is damaged" in capsys.readouterr().err


def test_no_data_is_an_error_that_lists_the_ways_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELYARD_DATA", str(tmp_path))
    assert main(["fashion", "--model-dir", str(tmp_path / "run")]) == 1
    assert "apt-get install dataset-fashion-mnist" in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "modelyard train fashion --epochs 3" in out
    assert "--batch-size" in out


def test_ctrl_c_ends_with_130_and_a_checkpoint(tmp_path: Path) -> None:
    code = "import sys; from modelyard.training.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["fashion", "--model-dir", str(tmp_path), "--epochs", "500", "--steps-per-loop", "2"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, env=dict(os.environ), stderr=subprocess.PIPE, text=True
    )
    if process.stderr is None:
        pytest.fail("no stderr")
    for line in process.stderr:
        if line.startswith("Epoch 1/500"):
            process.send_signal(signal.SIGINT)
            break
    rest = process.stderr.read()
    assert process.wait(60) == 130
    process.stderr.close()
    assert "Training interrupted after step" in rest
    assert f"The same command goes on from the checkpoint in {tmp_path}" in rest
    assert "Traceback" not in rest
    assert list((tmp_path / "checkpoints").iterdir())


def test_early_stop_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["linear", "--model-dir", str(tmp_path), "--epochs", "40", "--early-stop", "test_loss"]
    # More is better, they say: the first epoch's loss is the best.
    assert main([*arguments, "--patience", "2"]) == 0
    assert "linear: 3 epochs" in capsys.readouterr().out
    # A run that it has ended stays ended.
    assert main([*arguments, "--patience", "2"]) == 0
    assert "linear: 3 epochs" in capsys.readouterr().out
    assert main([*arguments, "--patience", "0"]) == 2
    assert "patience is 0" in capsys.readouterr().err
    assert main([*arguments[:-1], "f1", "--model-dir", str(tmp_path / "other")]) == 2
    assert "f1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--patience", "2"], "--patience says something about --early-stop, which is not given."),
        (["--wandb-mode", "offline"], "--wandb-mode says something about --wandb, which is not given."),
    ],
)
def test_flags_that_need_another_one(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["linear", "--model-dir", str(tmp_path), *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb", "ignore::ResourceWarning")
def test_wandb_has_the_pictures_of_tasks_that_have_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fashion = ["fashion", "--batch-size", "200", "--epochs", "1", "--wandb", "shop"]
    assert main([*fashion, "--model-dir", str(tmp_path / "fashion"), "--wandb-mode", "offline"]) == 0
    rows = wandb_history(tmp_path / "fashion" / "wandb")
    (last,) = [row for row in rows if "test/accuracy" in row]
    assert last["test/predictions/count"] == 25
    # Its environment variable, and a task without pictures.
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert main(["linear", "--epochs", "1", "--wandb", "shop", "--model-dir", str(tmp_path / "linear")]) == 0
    rows = wandb_history(tmp_path / "linear" / "wandb")
    (last,) = [row for row in rows if "test/loss" in row]
    assert not any("predictions" in name for name in last)
    monkeypatch.setenv("WANDB_MODE", "dryrun")
    assert main([*fashion, "--model-dir", str(tmp_path / "other")]) == 2
    assert "WANDB_MODE is 'dryrun'; expected online, offline, disabled." in capsys.readouterr().err
