"""The tasks that modelyard knows by name."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator, Mapping

from modelyard.errors import ConfigurationError
from modelyard.lazy import load_attribute
from modelyard.training.user import Task

_CLASSES = {
    "capsnet": "CapsnetTask",
    "cyclegan": "CycleganTask",
    "dcgan": "DcganTask",
    "fashion": "FashionTask",
    "gan": "GanTask",
    "linear": "LinearTask",
    "maml": "MamlTask",
    "mlp": "MlpTask",
    "nas": "NasTask",
    "siamese": "SiameseTask",
    "transfer": "TransferTask",
    "vae": "VaeTask",
}
#: Where each class is; read by the package's door too.
MODULES = {
    "CapsnetTask": "modelyard.training.tasks._capsnet",
    "CycleganTask": "modelyard.training.tasks._cyclegan",
    "DcganTask": "modelyard.training.tasks._dcgan",
    "GanTask": "modelyard.training.tasks._gan",
    "FashionTask": "modelyard.training.tasks._fashion",
    "LinearTask": "modelyard.training.tasks._linear",
    "MamlTask": "modelyard.training.tasks._maml",
    "MlpTask": "modelyard.training.tasks._mlp",
    "NasTask": "modelyard.training.tasks._nas",
    "SiameseTask": "modelyard.training.tasks._siamese",
    "TransferTask": "modelyard.training.tasks._transfer",
    "VaeTask": "modelyard.training.tasks._vae",
}


class _Tasks(Mapping[str, type[Task]]):
    """Task classes by name; a class is imported when it is looked up."""

    def __getitem__(self, name: str) -> type[Task]:
        task: type[Task] = load_attribute("modelyard.training.tasks", MODULES, _CLASSES[name], extra="training")
        return task

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(_CLASSES))

    def __len__(self) -> int:
        return len(_CLASSES)


def tasks() -> Mapping[str, type[Task]]:
    """The task classes by name, in the order of their names; looking one up imports it."""
    return _Tasks()


def find_task(name: str) -> type[Task]:
    """The class of one task.

    Args:
        name: Such as ``fashion``; or ``package.module:Class`` for a task of
            your own, which is imported.

    Raises:
        ConfigurationError: There is no such task; the message names the nearest.
        MissingDependencyError: The extra ``training`` is not installed.
    """
    known = tasks()
    if name in _CLASSES:
        return known[name]
    if ":" in name:
        return _imported(name)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise ConfigurationError(f"Unknown task {name!r}. {hint}Known tasks: {', '.join(known)}.")


def _imported(name: str) -> type[Task]:
    module, _, attribute = name.partition(":")
    expected = "expected package.module:Class, a subclass of modelyard.training.Task that Python can import from here"
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as exc:
        # What the user's module fails to import is not the user's spelling of its name.
        if exc.name is None or not (module == exc.name or module.startswith(f"{exc.name}.")):
            raise
        raise ConfigurationError(f"Received the task {name!r}: there is no module {exc.name!r}; {expected}.") from exc
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise ConfigurationError(f"Received the task {name!r}: {module} has no such task; {expected}.")
    return found
