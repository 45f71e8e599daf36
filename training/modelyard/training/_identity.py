"""What a run was made of, as JSON beside its checkpoints: enough to build it again, and to see what has changed.

::

    <model_dir>/run.json    task and its arguments, options, data, package versions, git commit
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from modelyard.artifact import git_commit
from modelyard.errors import CheckpointError, ConfigurationError
from modelyard.training._goal import Goal
from modelyard.training._options import TrainerOptions

if TYPE_CHECKING:
    from modelyard.training._task import Task

RUN_FILE = "run.json"
RUN_VERSION = 1
_PACKAGES = ("modelyard", "tensorflow", "keras", "numpy")
_PLAIN = (bool, int, float, str, type(None))


class RemembersArguments:
    """A class whose objects know what their constructor was given."""

    _constructed: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keeps the arguments; ``__init__`` gets them as ever."""
        made = super().__new__(cls)
        made._constructed = (args, kwargs)
        return made


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What a run was made of.

    Attributes:
        task: Name of the task.
        made_by: What makes it: ``package.module:Class``.
        file: Where that is defined, for people; empty where it is not known.
        arguments: What it was given, by name; as :func:`_encode` writes it.
        objects: Arguments that JSON cannot hold, by name, with their types.
        options: The fields of ``TrainerOptions``, but for ``model_dir``.
        data: What it trains on: ``description``, ``steps_per_epoch`` and ``batch``.
        replicas: How many replicas share a batch.
        packages: Versions by name, that of Python among them.
        git: Commit of the task's code, with ``-dirty`` where files differ; empty where there is none.
    """

    task: str
    made_by: str
    file: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    objects: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1
    packages: Mapping[str, str] = field(default_factory=dict)
    git: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they are in ``run.json`` and in the manifest of an export."""
        return asdict(self)

    def differences(self, other: RunRecord) -> tuple[str, ...]:
        """A sentence for each thing that another run has otherwise.

        Args:
            other: That run.
        """
        said = []
        for group in ("arguments", "options", "data", "packages"):
            old, new = getattr(self, group), getattr(other, group)
            for name in dict.fromkeys((*old, *new)):
                if old.get(name) != new.get(name):
                    label = _LABELS[group].format(name)
                    said.append(f"{label} was {_readable(old.get(name))} and is {_readable(new.get(name))} now.")
        for name, label in (("made_by", "The task"), ("git", "The task's git commit"), ("replicas", "replicas")):
            if getattr(self, name) != getattr(other, name):
                said.append(
                    f"{label} was {_readable(getattr(self, name))} and is {_readable(getattr(other, name))} now."
                )
        return tuple(said)

    def make_task(self, changes: Mapping[str, Any] | None = None) -> Task:
        """The task again.

        Args:
            changes: Arguments to give it in place of those that are written down.

        Raises:
            ConfigurationError: It was given objects that JSON cannot hold, or it cannot be imported from here.
        """
        missing = {name: kind for name, kind in self.objects.items() if name not in (changes or {})}
        if missing:
            named = ", ".join(f"{name} ({kind})" for name, kind in missing.items())
            raise ConfigurationError(
                f"The task {self.task!r} of this run was given {named}, which cannot be written down. Make the task "
                "yourself and pass it: restore(model_dir, task), Trainer.resume(model_dir, task=task). Or define a "
                "class that makes these objects itself from plain arguments."
            )
        arguments = {name: _decode(value) for name, value in self.arguments.items()}
        return self.task_class()(**{**arguments, **(changes or {})})

    def task_class(self) -> type[Task]:
        """What makes the task.

        Raises:
            ConfigurationError: It cannot be imported from here.
        """
        module, _, name = self.made_by.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ModuleNotFoundError, AttributeError) as exc:
            # What the user's module fails to import is not the name of that module.
            if isinstance(exc, ModuleNotFoundError) and not (exc.name and f"{module}.".startswith(f"{exc.name}.")):
                raise
            where = f" It was defined in {self.file}." if self.file else ""
            raise ConfigurationError(
                f"The task of this run, {self.made_by}, cannot be imported from here: {exc}.{where} Run this where "
                "Python finds that module, or make the task yourself and pass it."
            ) from exc
        kind: type[Task] = found
        return kind

    def make_options(self, model_dir: Path) -> TrainerOptions:
        """The options again.

        Args:
            model_dir: The folder of the run, which may have moved.
        """
        values = {name: _decode(value) for name, value in self.options.items()}
        return TrainerOptions(**values, model_dir=model_dir)


_LABELS = {
    "arguments": "The task's argument {}",
    "options": "The option {}",
    "data": "The data's {}",
    "packages": "The version of {}",
}


def record_run(
    task: Task, options: TrainerOptions, *, data: Mapping[str, Any] | None = None, replicas: int = 1
) -> RunRecord:
    """What a run is made of.

    Args:
        task: Its task.
        options: Its options.
        data: What it trains on.
        replicas: How many replicas share a batch.
    """
    arguments, objects = {}, {}
    for name, value in _arguments(task).items():
        try:
            arguments[name] = _encode(value)
        except TypeError:
            objects[name] = f"{type(value).__module__}.{type(value).__qualname__}"
    names = [each.name for each in fields(options) if each.name != "model_dir"]
    file = _file_of(type(task))
    return RunRecord(
        task=task.name,
        made_by=_name_of(type(task)),
        file="" if file is None else str(file),
        arguments=arguments,
        objects=objects,
        options={name: _encode(getattr(options, name)) for name in names},
        data={"description": task.data_description(), **(data or {})},
        replicas=replicas,
        packages={"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        git="" if file is None else git_commit(file),
    )


def read_record(path: Path) -> RunRecord | None:
    """What is written beside a run's checkpoints; None where nothing is.

    Args:
        path: The folder of the run, or of one of its checkpoints.

    Raises:
        CheckpointError: The file cannot be read.
    """
    file = path / RUN_FILE
    if not file.is_file() and path.parent.name == "checkpoints":
        file = path.parent.parent / RUN_FILE
    if not file.is_file():
        return None
    try:
        document = json.loads(file.read_text("utf-8"))
        version = document.pop("version")
        if version != RUN_VERSION:
            raise ValueError(f"version {version}, where this modelyard reads {RUN_VERSION}")
        return RunRecord(**document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise CheckpointError(
            f"{file} cannot be read: {type(exc).__name__}: {exc}. Move it away and pass the task and its options "
            "yourself: the checkpoints do not need it."
        ) from exc


def need_record(path: Path) -> RunRecord:
    """As :func:`read_record`, where there must be one.

    Args:
        path: The folder of the run, or of one of its checkpoints.

    Raises:
        CheckpointError: There is none, or it cannot be read.
    """
    record = read_record(path)
    if record is None:
        raise CheckpointError(f"{path} has no {RUN_FILE}, so it does not say which task it is of; pass the task.")
    return record


def write_record(record: RunRecord, model_dir: Path) -> None:
    """Writes it beside the checkpoints, whole or not at all.

    Args:
        record: Of the run.
        model_dir: The folder of the run.

    Raises:
        CheckpointError: It cannot be written.
    """
    file = model_dir / RUN_FILE
    temporary = file.with_name(f".{RUN_FILE}.new")
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({"version": RUN_VERSION, **record.to_dict()}, indent=1) + "\n", "utf-8")
        os.replace(temporary, file)
    except OSError as exc:
        raise CheckpointError(f"{file} cannot be written: {exc}") from exc


def _arguments(task: Task) -> dict[str, Any]:
    args, kwargs = task._constructed
    # Not of the class: __new__ above takes anything.
    bound = inspect.signature(type(task).__init__).bind(task, *args, **kwargs)
    found: dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:
        kind = bound.signature.parameters[name].kind
        found.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    return found


def _name_of(kind: type) -> str:
    module = kind.__module__
    if module == "__main__":
        # As ``python -m package.module`` runs it.
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        module = module if spec is None else spec.name
    return f"{module}:{kind.__qualname__}"


def _file_of(kind: type) -> Path | None:
    try:
        return Path(inspect.getfile(kind)).resolve()
    except (OSError, TypeError):
        # Of a notebook or an interactive session.
        return None


def _encode(value: Any) -> Any:
    """Plain values as they are; others under a key that names what they are."""
    if isinstance(value, Goal):
        return {"goal": asdict(value)}
    if isinstance(value, Path):
        return {"path": str(value)}
    if isinstance(value, tuple):
        return {"tuple": [_encode(each) for each in value]}
    if isinstance(value, list):
        return [_encode(each) for each in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _encode(each) for key, each in value.items()}}
    if isinstance(value, _PLAIN):
        return value
    raise TypeError(type(value).__name__)


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "goal":
        return Goal(**content)
    if kind == "path":
        return Path(content)
    if kind == "tuple":
        return tuple(_decode(each) for each in content)
    return {key: _decode(each) for key, each in content.items()}


def _readable(value: Any) -> str:
    if value is None or value == "":
        return "not given"
    decoded = _decode(value) if isinstance(value, dict) else value
    return str(decoded)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
