"""What a run was made of, as JSON beside its checkpoints: enough to build it again, and to see what has changed.

::

    <model_dir>/run.json    task and its arguments, options, data, package versions, git commit
"""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelyard.artifact import git_commit
from modelyard.errors import CheckpointError, ConfigurationError
from modelyard.training.run._files import replace_file
from modelyard.training.run._options import TrainerOptions
from modelyard.training.user import arguments_of, decode, encode, find_object, name_of, readable, same, without_configs

if TYPE_CHECKING:
    from modelyard.training.user import Task

RUN_FILE = "run.json"
RUN_VERSION = 1
_PACKAGES = ("modelyard", "tensorflow", "keras", "numpy")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What a run was made of.

    Attributes:
        task: Name of the task.
        made_by: What makes it: ``package.module:Class``.
        file: Where that is defined, for people; empty where it is not known.
        arguments: What it was given, by name, in the JSON of ``run.json``.
        objects: Arguments that cannot be made again from JSON, by name, with what they are.
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

    def summary(self) -> dict[str, Any]:
        """The same as results, logs and manifests have it: Keras objects are named, not spelt out."""
        arguments = {name: without_configs(value) for name, value in self.arguments.items()}
        return {**asdict(self), "arguments": arguments}

    def differences(self, other: RunRecord) -> tuple[str, ...]:
        """A sentence for each thing that another run has otherwise."""
        said = []
        for group in ("arguments", "options", "data", "packages"):
            old, new = getattr(self, group), getattr(other, group)
            for name in dict.fromkeys((*old, *new)):
                if not same(old.get(name), new.get(name)):
                    said.append(_difference(_LABELS[group].format(name), old.get(name), new.get(name)))
        for name, label in (("made_by", "The task"), ("git", "The task's git commit"), ("replicas", "replicas")):
            if getattr(self, name) != getattr(other, name):
                said.append(_difference(label, getattr(self, name), getattr(other, name)))
        return tuple(said)

    def make_task(self, changes: Mapping[str, object] | None = None) -> Task:
        """The task again.

        Args:
            changes: Arguments to give it in place of those that are written down.

        Raises:
            ConfigurationError: It, or what it was given, cannot be made again from here.
        """
        missing = {name: kind for name, kind in self.objects.items() if name not in (changes or {})}
        if missing:
            named = ", ".join(f"{name} ({kind})" for name, kind in missing.items())
            raise ConfigurationError(
                f"The task {self.task!r} of this run was given {named}, which cannot be written down. Make the task "
                "yourself and pass it, as in restore(model_dir, task).export(destination) and "
                "Trainer.resume(model_dir, task=task). Or define a class in a module of its own that makes these "
                "objects itself from plain arguments."
            )
        kept = {name: value for name, value in self.arguments.items() if name not in (changes or {})}
        try:
            arguments = {name: decode(value) for name, value in kept.items()}
        except ConfigurationError as exc:
            raise ConfigurationError(
                f"What the task {self.task!r} of this run was given cannot be made again: {exc.message} Run this where "
                "Python finds it, or make the task yourself and pass it, as in restore(model_dir, task)."
                "export(destination)."
            ) from exc
        return self.task_class()(**{**arguments, **(changes or {})})

    def task_class(self) -> type[Task]:
        """The class of the task.

        Raises:
            ConfigurationError: It cannot be imported from here.
        """
        from modelyard.training.user import Task

        where = f" It is the task of this run, defined in {self.file}." if self.file else ""
        module, _, name = self.made_by.partition(":")
        if module == "__main__":
            stem = Path(self.file).stem if self.file else "module"
            raise ConfigurationError(
                f"The task of this run, {name}, cannot be made again: it was defined in a script "
                f"({self.file or 'without a file'}), which is run and not imported. Make the task yourself and pass "
                "it, as in restore(model_dir, task).export(destination); or, where importing the script trains "
                f"nothing, name the task with the run's folder: modelyard export {stem}:{name} --model-dir RUN."
            )
        try:
            kind = find_object(self.made_by)
        except ConfigurationError as exc:
            raise ConfigurationError(
                f"{exc.message}{where} Run this where Python finds that module, or make the task yourself and pass it, "
                "as in restore(model_dir, task).export(destination)."
            ) from exc
        if not (isinstance(kind, type) and issubclass(kind, Task)):
            raise ConfigurationError(f"The task of this run, {self.made_by}, is no subclass of Task.")
        return kind

    def make_options(self, model_dir: Path) -> TrainerOptions:
        """The options again, for the folder of the run, which may have moved."""
        values = {name: decode(value) for name, value in self.options.items()}
        return TrainerOptions(**values, model_dir=model_dir)


_LABELS = {
    "arguments": "The task's argument {}",
    "options": "The option {}",
    "data": "The data's {}",
    "packages": "The version of {}",
}


def record_run(
    task: Task, options: TrainerOptions, *, data: Mapping[str, object] | None = None, replicas: int = 1
) -> RunRecord:
    """What a run is made of."""
    arguments, objects = {}, {}
    for name, value in arguments_of(task).items():
        try:
            arguments[name] = encode(value)
        except TypeError:
            kind = type(value)
            objects[name] = name_of(value) if inspect.isfunction(value) else f"{kind.__module__}.{kind.__qualname__}"
    names = [each.name for each in fields(options) if each.name != "model_dir"]
    file = _file_of(type(task))
    return RunRecord(
        task=task.name,
        made_by=name_of(type(task)),
        file="" if file is None else str(file),
        arguments=arguments,
        objects=objects,
        options={name: encode(getattr(options, name)) for name in names},
        data={"description": task.data_description(), **(data or {})},
        replicas=replicas,
        packages={"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        git="" if file is None else git_commit(file),
    )


def read_record(path: Path | str) -> RunRecord | None:
    """What is written beside a run's checkpoints; None where nothing is.

    Args:
        path: The folder of the run, or of one of its checkpoints.

    Raises:
        CheckpointError: The file cannot be read.
    """
    path = Path(path)
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
    """As :func:`read_record`, where there must be one."""
    record = read_record(path)
    if record is None:
        raise CheckpointError(f"{path} has no {RUN_FILE}, so it does not say which task it is of; pass the task.")
    return record


def write_record(record: RunRecord, model_dir: Path) -> None:
    """Writes it beside the checkpoints."""
    text = json.dumps({"version": RUN_VERSION, **asdict(record)}, indent=1) + "\n"
    replace_file(model_dir / RUN_FILE, text, error=CheckpointError)


def _difference(label: str, old: object, new: object) -> str:
    was, now = readable(old), readable(new)
    return f"{label} is another {now} now." if was == now else f"{label} was {was} and is {now} now."


def _file_of(kind: type) -> Path | None:
    try:
        # What makes a task without a class of its own is the script that runs.
        own = kind.__module__ != "modelyard.training.user._supervised"
        return Path(inspect.getfile(kind if own else sys.modules["__main__"])).resolve()
    except (OSError, TypeError):
        # Of a notebook or an interactive session.
        return None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
