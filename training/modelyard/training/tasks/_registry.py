"""The tasks that modelyard knows by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from modelyard.errors import ConfigurationError
from modelyard.training.user import Task, find_object

#: A task ``one_name`` is the class ``OneNameTask`` in the module ``_one_name``.
_NAMES = (
    "capsnet",
    "cyclegan",
    "dcgan",
    "fashion",
    "gan",
    "ladder",
    "linear",
    "maml",
    "mlp",
    "nas",
    "siamese",
    "siamese_text",
    "transfer",
    "vae",
)
_CLASSES = {name: f"{name.title().replace('_', '')}Task" for name in _NAMES}
MODULES = {f"._{name}": [kind] for name, kind in _CLASSES.items()}


class _Tasks(Mapping[str, type[Task]]):
    """Task classes by name; a class is imported when it is looked up."""

    def __getitem__(self, name: str) -> type[Task]:
        if name not in _NAMES:
            raise KeyError(name)
        from modelyard.training import tasks

        task: type[Task] = getattr(tasks, _CLASSES[name])
        return task

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


def tasks() -> Mapping[str, type[Task]]:
    """The task classes by name, in the order of their names; looking one up imports it."""
    return _Tasks()


def find_task(name: str) -> type[Task]:
    """The class of one task, such as ``fashion``; or ``package.module:Class``, a task of your own, which is imported.

    Raises:
        ConfigurationError: There is no such task; the message names the nearest.
        MissingDependencyError: The extra ``training`` is not installed.
    """
    known = tasks()
    if name in _NAMES:
        return known[name]
    if ":" in name:
        return _imported(name)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise ConfigurationError(f"Unknown task {name!r}. {hint}Known tasks: {', '.join(known)}.")


def _imported(name: str) -> type[Task]:
    expected = "expected package.module:Class, a subclass of modelyard.training.Task that Python can import from here"
    try:
        found = find_object(name)
    except ConfigurationError as exc:
        raise ConfigurationError(f"Received the task {name!r}: {exc.message} E{expected[1:]}.") from exc
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise ConfigurationError(f"Received the task {name!r}: it is no task; {expected}.")
    return found
