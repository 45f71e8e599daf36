"""Fixtures that several rooms share."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from modelyard.export import ExportOptions
from tests.support.devices import set_logical_cpus
from tests.support.fashion import publish_fashion

#: Set by a developer's shell, they would change what the tests see.
_SCRUBBED = ("MODELYARD_DATA", "MODEL_NAME", "MODEL_BASE_PATH")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is imported: the training room wants several devices, and tests press Ctrl-C."""
    # A process for each of a hundred exports would take longer than they do: tests/export/isolation has it, and so has
    # whatever runs the command line.
    (ExportOptions.__init__.__kwdefaults__ or {}).update(isolate=False)
    # A worker of pytest-xdist ignores Ctrl-C, and all that it starts would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    training = Path(__file__).parent / "training"
    named = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    if any(training.is_relative_to(path) or path.is_relative_to(training) for path in named):
        set_logical_cpus()


@pytest.fixture(autouse=True, scope="session")
def clean_environment() -> Iterator[None]:
    saved = {name: os.environ.pop(name) for name in _SCRUBBED if name in os.environ}
    yield
    os.environ.update(saved)


@pytest.fixture(autouse=True, scope="session")
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Logs of what fails, and folders of processes that tests kill: they go with the session."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def session_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("session")


@pytest.fixture(scope="session")
def fashion_model_dir(session_dir: Path) -> Path:
    """``<repository>/fashion`` with version 1, in all formats."""
    return publish_fashion(session_dir / "repository")
