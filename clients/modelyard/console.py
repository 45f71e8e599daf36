"""What the processes of the command line have in common: what libraries may say on the standard error."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType

#: What TensorFlow's libraries say of themselves and of the machine, before it can be told what to say; whatever else
#: comes meanwhile passes.
_BANNER = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog"
    rb"|[IW]\d{4} \d\d:\d\d:\d+\.\d+ .*\.cc:\d+\]"
    rb"|E\d{4} \d\d:\d\d:\d+\.\d+ .*\.cc:\d+\] (?:failed call to cuInit|Unable to register cu)"
    rb"|To enable the following instructions:"
)
#: The variable that says what TensorFlow tells: 0 for everything.
LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_PATIENCE_S = 1.0


def quiet_libraries() -> None:
    """Switches TensorFlow's banners off, unless ``TF_CPP_MIN_LOG_LEVEL`` is 0 or 1, to which ``--verbose`` sets it.

    For a process's own ``main``, before TensorFlow is imported. Only its libraries know how to be quiet, once they
    are loaded: what they say until then is taken out of the standard error while they are imported.
    """
    quiet = os.environ.setdefault(LOG_LEVEL, "2") not in ("0", "1")
    if quiet and "tensorflow" not in sys.modules and not any(isinstance(each, _QuietImport) for each in sys.meta_path):
        sys.meta_path.insert(0, _QuietImport())


class _QuietImport(importlib.abc.MetaPathFinder):
    """Imports TensorFlow without its banners."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Takes TensorFlow from where it is, and wraps what executes it."""
        if fullname != "tensorflow":
            return None
        # Whoever only asks whether it is installed gets here, too.
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with _without_banners():
                    execute(module)
                    # The drivers that are looked for at first use have their say, too.
                    module.config.list_physical_devices()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _without_banners() -> Iterator[None]:
    """Has a thread read the standard error, and pass on what is no banner."""
    try:
        sys.stderr.flush()
        shown = os.dup(2)
    except (OSError, AttributeError):
        # A daemon may have closed it: then nobody reads any of it.
        yield
        return
    read, write = os.pipe()
    os.dup2(write, 2)
    os.close(write)

    def pass_on() -> None:
        with open(read, "rb") as lines, open(shown, "wb", buffering=0) as screen:
            for line in lines:
                if not _BANNER.match(line):
                    screen.write(line)

    reader = threading.Thread(target=pass_on, name="modelyard-stderr", daemon=True)
    reader.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(shown, 2)
        # A process that was started meanwhile may hold the pipe for as long as it runs.
        reader.join(_PATIENCE_S)
