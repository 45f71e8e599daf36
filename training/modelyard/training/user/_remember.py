"""What objects were given, as JSON, and the objects again: without pickle, from importable names and plain values."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from modelyard.errors import ConfigurationError

_PLAIN = (bool, int, float, str, type(None))
#: Keras counts the objects of a process: conv2d_1 is another name in the next one.
_COUNTED = re.compile(r'_\d+"')


class RemembersArguments:
    """A class whose objects know what their constructor was given."""

    _constructed: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keeps the arguments; ``__init__`` gets them as ever."""
        made = super().__new__(cls)
        made._constructed = (args, kwargs)
        return made


def arguments_of(item: RemembersArguments) -> dict[str, Any]:
    """What the constructor of an object was given, by name."""
    args, kwargs = item._constructed
    # Not of the class: __new__ above takes anything.
    bound = inspect.signature(type(item).__init__).bind(item, *args, **kwargs)
    found: dict[str, object] = {}
    for name, value in list(bound.arguments.items())[1:]:
        kind = bound.signature.parameters[name].kind
        found.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    return found


def encode(value: object) -> Any:
    """Plain values as they are; others under a key that says how they are made again."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Path):
        return {"path": str(value)}
    if isinstance(value, list):
        return [encode(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(each) for each in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: encode(each) for key, each in value.items()}}
    if inspect.isfunction(value) or inspect.isclass(value):
        return {"name": _importable(value)}
    kind = _importable(type(value))
    if isinstance(value, RemembersArguments):
        given = arguments_of(value)
    elif dataclasses.is_dataclass(value):
        given = {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.init}
    else:
        return {"keras": _keras_config(value)}
    return {"made": {"by": kind, "arguments": {name: encode(each) for name, each in given.items()}}}


def decode(value: object) -> Any:
    """What :func:`encode` was given.

    Raises:
        ConfigurationError: A name cannot be imported, or is of something that a run never has: whoever wrote the file
            would have it called.
    """
    if isinstance(value, list):
        return [decode(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "path":
        return Path(content)
    if kind == "tuple":
        return tuple(decode(each) for each in content)
    if kind == "name":
        found = find_object(content)
        if not (inspect.isfunction(found) or inspect.isclass(found)):
            raise ConfigurationError(f"{content} is no function or class; expected one of those in a run.")
        return found
    if kind == "made":
        maker = find_object(content["by"])
        if not (inspect.isclass(maker) and (issubclass(maker, RemembersArguments) or dataclasses.is_dataclass(maker))):
            raise ConfigurationError(f"{content['by']} is no class of what a run has: a task, a source or a dataclass.")
        return maker(**{name: decode(each) for name, each in content["arguments"].items()})
    if kind == "keras":
        import keras

        try:
            return keras.saving.deserialize_keras_object(content)
        except (TypeError, ValueError, ImportError) as exc:
            raise ConfigurationError(f"Keras cannot make the {content['class_name']} of this run again: {exc}") from exc
    return {key: decode(each) for key, each in content.items()}


def same(old: object, new: object) -> bool:
    """Whether two things that were written down are the same, but for names that Keras counts."""
    return old == new or _counted_off(old) == _counted_off(new)


def readable(value: object) -> str:
    """What was written down, for people."""
    if value is None or value == "":
        return "not given"
    if isinstance(value, list):
        return f"[{', '.join(map(readable, value))}]"
    if not isinstance(value, dict):
        return str(value)
    ((kind, content),) = value.items()
    if kind == "keras":
        return str(content["class_name"])
    if kind == "made":
        given = (f"{name}={readable(each)}" for name, each in content["arguments"].items())
        return f"{content['by'].rpartition(':')[2]}({', '.join(given)})"
    if kind in ("tuple", "dict"):
        items = content if kind == "tuple" else [f"{name}: {readable(each)}" for name, each in content.items()]
        return f"({', '.join(map(readable, items))})"
    return str(content)


def without_configs(value: object) -> Any:
    """What was written down, with the class of a Keras object in place of all that it is made of."""
    if isinstance(value, list):
        return [without_configs(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "keras" in value:
        return {"keras": value["keras"]["class_name"]}
    return {name: without_configs(each) for name, each in value.items()}


def find_object(name: str) -> Any:
    """A class or a function by its name."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ModuleNotFoundError, AttributeError) as exc:
        # What the user's module fails to import is not the name of that module.
        if isinstance(exc, ModuleNotFoundError) and not (exc.name and f"{module}.".startswith(f"{exc.name}.")):
            raise
        raise ConfigurationError(f"{name} cannot be imported from here: {exc}.") from exc
    return found


def name_of(item: Any) -> str:
    """The name of a class or a function, ``package.module:Class``; importable or not."""
    module = item.__module__
    if module == "__main__":
        # As ``python -m package.module`` runs it.
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        module = module if spec is None else spec.name
    return f"{module}:{item.__qualname__}"


def _importable(item: object) -> str:
    name = name_of(item)
    if name.startswith("__main__:") or "<" in name:
        raise TypeError(name)
    return name


def _keras_config(value: object) -> Mapping[str, object]:
    import keras

    schedule = keras.optimizers.schedules.LearningRateSchedule
    if not isinstance(value, keras.Layer | keras.Loss | keras.Metric | keras.Optimizer | schedule):
        raise TypeError(type(value).__name__)
    try:
        text = json.dumps(keras.saving.serialize_keras_object(value))
        # Of some losses and metrics Keras writes not all down: Huber's delta, CosineSimilarity's axis.
        if hasattr(value, "_fn_kwargs"):
            again = keras.saving.deserialize_keras_object(json.loads(text))
            if (again._fn_kwargs, again.dtype) != (value._fn_kwargs, value.dtype):
                raise TypeError(f"Keras makes another {type(value).__name__} of what it writes down")
    except (NotImplementedError, ValueError, ImportError) as exc:
        raise TypeError(str(exc)) from exc
    config: Mapping[str, object] = json.loads(text)
    return config


def _counted_off(value: object) -> str:
    return _COUNTED.sub('"', json.dumps(value, sort_keys=True))
