"""modelyard export, with the task that modelyard brings along."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from modelyard.artifact import read_manifest, verify_files
from modelyard.export.cli import export_here as main
from modelyard.training import Trainer, TrainerOptions
from modelyard.training.tasks import find_task


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODELYARD_DATA", "subset")
        Trainer(find_task("fashion")(), TrainerOptions(epochs=1, model_dir=folder)).run()
    return folder


def test_a_run_becomes_a_version(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MODELYARD_DATA", "subset")
    arguments = ["fashion", "--model-dir", str(run), "--repository", str(tmp_path), "--examples", "256"]
    assert main([*arguments, "--name", "clothes"]) == 0
    captured = capsys.readouterr()
    version = tmp_path / "clothes" / "1"
    assert captured.out.startswith(f"clothes version 1: {version}\n")
    assert "onnx: verified on 512 examples" in captured.out
    assert "top-1 agreement 100.00%" in captured.out
    assert "export: verify tflite image_bytes" in captured.err
    manifest = read_manifest(version)
    verify_files(version, manifest)
    assert set(manifest.signatures) == {"serving_default", "image_bytes"}
    assert manifest.source.task == "fashion"
    assert 0 < manifest.source.metrics["test_accuracy"] < 1
    for entry in manifest.formats.values():
        assert entry.verify.max_abs_error <= 1e-5
        assert entry.verify.top1_agreement == 1.0


def test_a_task_of_your_own_is_published_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "modelyard.training.tasks:LinearTask"
    Trainer(find_task(name)(), TrainerOptions(epochs=1, batch_size=32, model_dir=Path("run"))).run()
    command = [name, "--model-dir", "run", "--repository", "models", "--format", "saved_model"]
    assert main([*command, "--measure-seconds", "0.5"]) == 0
    assert [path.name for path in Path("models").iterdir()] == ["linear"]
    assert capsys.readouterr().out.startswith("linear version 1: ")


def test_of_several_processes_the_first_exports(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    command = ["fashion", "--model-dir", str(run), "--repository", str(tmp_path)]
    assert main(command) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "this process is worker 0; chief 0 exports." in captured.err
    # On the other machines that takes no TensorFlow.
    code = "import sys; from modelyard.export.cli import export_here; export_here(sys.argv[1:])"
    code += "; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *command], check=True, capture_output=True, text=True)
    assert (done.stdout, "chief 0 exports." in done.stderr) == ("False\n", True)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert main(command) == 2
    assert "TF_CONFIG is '{}', which cannot be read" in capsys.readouterr().err


# What Keras itself does while it saves.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_variant_outside_its_budget_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keras.utils.set_random_seed(1)
    keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(3)]).save(tmp_path / "dense.keras")
    arguments = [str(tmp_path / "dense.keras"), "--data", "random", "--repository", str(tmp_path / "models")]
    arguments += ["--format", "onnx", "--max-abs-error", "1e-9", "--max-accuracy-drop", "100%"]
    arguments += ["--measure-seconds", "0.3", "--runtime", "onnxruntime"]
    assert main([*arguments, "--precision", "float32", "int8"]) == 0
    out = capsys.readouterr().out
    assert "refused: Variant onnx.int8 in onnxruntime: the " in out and "the budget allows 1e-09." in out
    assert "Served by default with onnxruntime, onnx, " in out
    (refusal,) = read_manifest(tmp_path / "models" / "dense" / "1").refused
    assert (refusal.measure, refusal.allowed) == ("abs_error", 1e-9)
    assert main([*arguments, "--precision", "int8"]) == 1
    assert "Format onnx was asked for in int8 only, and nothing of it is left." in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "models" / "dense").iterdir()] == ["1"]


def test_a_share_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["fashion", "--repository", "models", "--max-accuracy-drop", "half"])
    assert "received 'half'; expected a share such as 0.5% or 0.005" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["fashion", "--max-abs-error", "0.1"], 2, "--precision asks for none; float32 has --tolerance"),
        (["fashion", "--max-accuracy-drop", "200%"], 2, "max_accuracy_drop is 2.0"),
        (["fashion", "--precision", "int8", "--format", "saved_model"], 2, "only onnx and tflite have variants"),
        (["fashion", "--calibration-data", "x.npz"], 2, "--calibration-data is for paths"),
        (["fashoin"], 2, "Did you mean 'fashion'"),
        (["fashion", "--examples", "10"], 2, "--examples is 10; expected at least 256"),
        (["fashion", "--name", "../other"], 2, "The model's name is '../other', which /v1/models/NAME cannot route"),
        (["fashion", "--name", "my model"], 2, "expected letters of ASCII, digits and ._~- alone"),
        (["fashion", "--name", "a:b"], 2, "Give another one: --name NAME"),
        (["tests.training.toy_task:Absent"], 2, "tests.training.toy_task:Absent cannot be imported"),
        (["nothere"], 2, "There is no file or folder 'nothere'. Unknown task 'nothere'"),
        (["fashion", "--data", "random"], 2, "--data is for paths; the task fashion brings its own"),
        (["absent.keras"], 2, "absent.keras does not exist."),
        (["absent.onnx", "--data", "random"], 2, "absent.onnx does not exist."),
        (["here.keras"], 2, "here.keras needs examples to be verified with; give --data PATH"),
        (["here.keras", "--data", "nothere.npz"], 2, "nothere.npz does not exist."),
        (["here.keras", "--data", "random", "--calibration-data", "c.npz"], 2, "c.npz does not exist."),
        (["here.keras", "--data", "random", "--set", "a=1"], 2, "--set is for tasks; here.keras is a model already"),
        (["my model.keras", "--data", "random"], 2, "The model's name is 'my model'"),
        (["folder/absent", "--data", "random"], 2, "folder/absent does not exist."),
        (["fashion", "--model-dir", "absent"], 1, "absent has no checkpoint"),
    ],
)
def test_errors_are_told(
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MODELYARD_DATA", "subset")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.keras").write_bytes(b"")
    assert main([*arguments, "--repository", str(tmp_path / "repository")]) == code
    error = capsys.readouterr().err
    assert error.startswith("modelyard export: ") and message in error
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize("arguments", [["absent.keras"], ["folder/absent", "--data", "random"], ["here.keras"]])
def test_what_a_source_lacks_is_told_before_keras_loads(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.keras").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "keras", None)
    assert main([*arguments, "--repository", "repository"]) == 2
