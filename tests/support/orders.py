"""What tests have a worker of ``modelyard.export.isolation`` do; a module of its own, for it loads no library."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from modelyard.errors import ConversionError, MissingDependencyError
from modelyard.export import ExportEvent, Progress


def about() -> dict[str, Any]:
    logging.getLogger("modelyard.export").warning("said by %s", "the worker")
    return {
        "loaded": {"tensorflow", "tf2onnx", "keras"} & set(sys.modules),
        "gpu": os.environ["CUDA_VISIBLE_DEVICES"],
        "temporary": tempfile.gettempdir(),
        "score": int(Path("/proc/self/oom_score_adj").read_text()),
    }


def refuse() -> None:
    try:
        int("x")
    except ValueError as exc:
        raise ConversionError("A number was expected.") from exc


def miss() -> None:
    raise MissingDependencyError(package="p", extra="e", purpose="This")


def break_down() -> None:
    raise KeyError("what nobody expected")


def work(values: list[int], progress: Progress) -> int:
    progress(ExportEvent(stage="adding", done=1, total=1))
    return sum(values)


def die(number: int) -> None:
    sys.stdout.write("the last words of a library\n")
    os.kill(os.getpid(), number)
