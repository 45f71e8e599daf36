"""The public names, and what importing them costs."""

from __future__ import annotations

import pytest

import modelyard.training
import modelyard.training.data
import modelyard.training.tasks
import modelyard.training.tune
from modelyard.lazy import load_attribute
from tests.training.conftest import RunPython

PUBLIC = {
    modelyard.training: [
        "Action", "CheckpointSaved", "Cluster", "CompiledStep", "CsvLog", "EarlyStop", "EvalResult",
        "Evaluated", "Event", "Goal", "ImagePredictions", "InputRequest", "JsonlLog", "Loop", "LoopOptions",
        "Pipeline", "PipelineOptions", "PipelineResult", "ProgressBar", "ResidentData", "RunEnded", "RunRecord",
        "RunStarted", "StepsDone", "Stops", "SupervisedTask", "Task", "TensorBoardLog", "Throughput",
        "ThroughputLog", "TrainResult", "Trainer", "TrainerOptions", "WandbLog", "Watches", "apply_gradients",
        "average_loss", "evaluate", "loss_scaled", "make_source", "make_strategy", "minimize", "offload_slots",
        "predict", "predict_images", "read_record", "regularization_loss", "restore",
    ],
    modelyard.training.data: [
        "Arrays", "Augmentation", "DataExamples", "DataSource", "FashionMnist", "ImageCache", "ImageFiles",
        "ImageFolder", "ImageOptions", "ImageSplits", "Mnist", "RecordFolder", "RecordSplit", "Records", "Stream",
        "StreamPosition",
        "decode_image", "image_examples", "image_folder_dataset", "load_fashion_mnist", "load_idx_folder", "load_mnist",
        "memory_images", "open_records", "read_vocabulary", "scan_images", "tfrecord_dataset", "worker_share",
        "write_vocabulary",
    ],
    modelyard.training.tune: [
        "Parameter", "ReportAction", "SearchResult", "TuneOptions", "configure", "load_options", "parse_parameter",
        "search",
    ],
    modelyard.training.tasks: [
        "CapsnetTask", "CycleganTask", "DcganTask", "FashionTask", "GanTask", "LadderTask", "LinearTask", "MamlTask",
        "MlpTask", "NasTask", "PictureLog", "SiameseTask", "SiameseTextTask", "TransferTask",
        "VaeTask", "draw_run", "find_task", "make_task", "tasks",
    ],
}  # fmt: skip


@pytest.mark.parametrize("package", PUBLIC, ids=lambda package: package.__name__)
def test_public_names(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert names == PUBLIC[package] == sorted(names)  # type: ignore[index]
    assert all(getattr(package, name) is not None for name in names)
    assert set(names) <= set(dir(package))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Trainr'"):
        _ = modelyard.training.Trainr


def test_importing_and_loading_images_needs_no_tensorflow(run_python: RunPython) -> None:
    done = run_python(
        "import sys, modelyard.training, modelyard.training.tasks, modelyard.training.cli\n"
        "from modelyard.training.data import load_fashion_mnist\n"
        "count = len(load_fashion_mnist().test_images)\n"
        "sys.stdout.write(f\"{count} {'tensorflow' in sys.modules} {'keras' in sys.modules}\")",
        MODELYARD_DATA="subset",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1000 False False"


def test_a_missing_extra_says_what_to_install(run_python: RunPython) -> None:
    done = run_python(
        "import sys; sys.modules['tensorflow'] = sys.modules['keras'] = None\n"
        "from modelyard.training.cli import main\n"
        "sys.exit(main(['fashion']))",
        MODELYARD_DATA="subset",
    )
    assert done.returncode == 2
    assert "pip install 'modelyard[training]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_missing_module_is_not_taken_for_a_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        load_attribute("package", {"x": "no_such_module"}, "x", extra="training")
