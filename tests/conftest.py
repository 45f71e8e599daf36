"""Fixtures that several rooms share."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from modelyard.export import ExportOptions
from tests.support.devices import set_logical_cpus
from tests.support.fashion import publish_fashion

#: Set by a developer's shell, they would change what the tests see.
_SCRUBBED = ("MODELYARD_DATA", "MODEL_NAME", "MODEL_BASE_PATH")
_STARTUP = Path(__file__).parent / "support" / "startup"

# How long an example takes says how busy the machine is.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

# A process for each of a hundred exports, and 20 s to measure each, would take longer than they do: tests/export has
# what is about either, and whatever runs the command line has both. Here, as the options of other conftest.py are made
# before pytest_configure.
(ExportOptions.__init__.__kwdefaults__ or {}).update(isolate=False, measure_seconds=0.3)


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is imported: the training room wants several devices, and tests press Ctrl-C."""
    # Of the workers of pytest-xdist, too, which have yet to start.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_STARTUP), os.environ.get("PYTHONPATH")]))
    # A worker of pytest-xdist ignores Ctrl-C, and all that it starts would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        # Tests run in the workers: this process needs no TensorFlow.
        return
    training = Path(__file__).parent / "training"
    named = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    if any(training.is_relative_to(path) or path.is_relative_to(training) for path in named):
        set_logical_cpus()


# After a random order was made.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The file that takes longest comes first: last, it would keep one worker busy while the others have nothing."""
    # Again, pytest's own order of a module's tests: those with the same parameter of a fixture beside each other. Else
    # its servers, of which there is one at a time, would be started anew for nearly every test.
    fixtures = config.pluginmanager.get_plugin("funcmanage")
    assert fixtures is not None
    fixtures.pytest_collection_modifyitems(items)
    items.sort(key=lambda item: item.path.name != "test_zoo.py")


def pytest_collection_finish() -> None:
    """What was imported is no garbage: a collection that looked at all of TensorFlow would take a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    # What processes that are killed leave behind lies where pytest removes it. A short name: sockets have paths, too.
    temporary = tmp_path_factory.getbasetemp() / "t"
    temporary.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in _SCRUBBED:
            patch.delenv(name, raising=False)
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr(tempfile, "tempdir", str(temporary))
        # A model of TensorFlow's that is unloaded in this process would have it look at all that was imported, a second
        # each time: serving/runtime/test_memory.py has processes of its own for that.
        patch.setattr("modelyard.serving.backends._tensorflow.collect_cycles", lambda: None)
        yield
    # pytest keeps the folders of the last three sessions. What multiprocessing has made it removes at the exit.
    for each in temporary.iterdir():
        if each.is_file() or each.is_socket():
            each.unlink(missing_ok=True)
        elif not each.name.startswith("pymp-"):
            shutil.rmtree(each, ignore_errors=True)


@pytest.fixture(scope="session")
def session_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("session")


@pytest.fixture(scope="session")
def fashion_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``<repository>/fashion`` with version 1, in all formats; for all workers of pytest-xdist, which only read it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / "fashion.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        repository = folder / "repository"
        if not (repository / "fashion" / "1").exists():
            publish_fashion(repository)
    return repository / "fashion"
