"""A task made from the command line: its name, and values for its constructor."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modelyard.errors import ConfigurationError
from modelyard.training.run import read_record
from modelyard.training.tasks._registry import find_task
from modelyard.training.user import Task


def make_task(name: str, assignments: Sequence[str] = ()) -> Task:
    """Makes a task from a name as for :func:`find_task`, or from the folder of a run, which says what its task is.

    Values of ``argument=value`` are read as JSON where they are JSON, such as ``20`` or ``true``, and as text
    otherwise.

    Raises:
        CheckpointError: The run cannot be read.
        ConfigurationError: There is no such task, it has no such argument, or a value is not of its kind.
        MissingDependencyError: The extra ``training`` is not installed.
    """
    record = read_record(Path(name))
    kind = find_task(name) if record is None else record.task_class()
    make = kind if record is None else lambda **changes: record.make_task(changes)
    if not assignments:
        return make()
    known = {
        parameter.name: parameter
        for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    return make(**_values(kind.name, known, assignments))


def _values(name: str, known: Mapping[str, inspect.Parameter], assignments: Sequence[str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for assignment in assignments:
        argument, equals, text = assignment.partition("=")
        if not equals or argument not in known:
            named = ", ".join(sorted(known)) or "none"
            raise ConfigurationError(
                f"Received --set {assignment} for the task {name!r}; expected argument=value. Its arguments: {named}."
            )
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        values[argument] = _checked(assignment, known[argument].default, value)
    return values


def _checked(assignment: str, default: object, value: object) -> Any:
    """The value, of the kind that the argument's default has."""
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if default is None or default is inspect.Parameter.empty or type(value) is type(default):
        return value
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    raise ConfigurationError(f"Received --set {assignment}; expected a value like the default, {json.dumps(default)}.")
