"""A really trained, really exported fashion model, on the small subset that ships with modelyard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.exports import EXPORT_HERE


def publish_fashion(folder: Path, *, epochs: int = 2) -> Path:
    """Trains, exports and publishes in a process of its own.

    Returns the model's directory in the repository.
    """
    code = EXPORT_HERE + (
        "import sys; from pathlib import Path\n"
        "from modelyard.training import Trainer, TrainerOptions\n"
        "from modelyard.training.tasks import find_task\n"
        "task = find_task('fashion')()\n"
        "result = Trainer(task, TrainerOptions(epochs=int(sys.argv[2]))).run()\n"
        "result.export(Path(sys.argv[1]), examples=64, options=ExportOptions(min_examples=64))\n"
    )
    model_dir = folder / "fashion"
    environment = {**os.environ, "MODELYARD_DATA": "subset", "TF_CPP_MIN_LOG_LEVEL": "2"}
    result = subprocess.run(
        [sys.executable, "-c", code, str(model_dir), str(epochs)],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if result.returncode != 0:
        raise RuntimeError(f"training or exporting failed:\n{result.stdout}\n{result.stderr}")
    return model_dir
