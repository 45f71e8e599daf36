"""Checks custom resources against the API models that their projects publish as Python packages.

The models are read, not imported: kserve's package alone would bring a second serving stack. What they say of
Kubernetes' own types is checked against Kubernetes' schemas.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

_CONTAINERS = re.compile(r"(dict|list)[(\[](?:str, )?(\w+)[)\]]")
_SCALARS: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "bool": (bool,), "float": (int, float), "object": (object,), "datetime": (str,),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Model:
    """One generated class: JSON key to type, and the keys that must be there."""

    types: dict[str, str]
    required: frozenset[str]


@cache
def models(package: str, folder: str) -> dict[str, Model]:
    """Every model of an installed package.

    Args:
        package: Such as ``kserve``.
        folder: Where its models are, such as ``kserve/models``.

    Raises:
        PackageNotFoundError: It is not installed.
    """
    found: dict[str, Model] = {}
    for file in distribution(package).files or []:
        if str(file.parent) == folder and file.suffix == ".py":
            for node in ast.parse(Path(str(file.locate())).read_text()).body:
                if isinstance(node, ast.ClassDef):
                    model = _model(node)
                    if model is not None:
                        found[node.name] = model
    return found


def _model(node: ast.ClassDef) -> Model | None:
    tables = {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in node.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id in ("openapi_types", "attribute_map")
    }
    if len(tables) != 2:
        return None
    keys = tables["attribute_map"]
    text = ast.unparse(node)
    required = {keys[name] for name in re.findall(r"Invalid value for `(\w+)`, must not be `None`", text)}
    return Model(
        types={keys[name]: kind for name, kind in tables["openapi_types"].items()}, required=frozenset(required)
    )


def check(value: Any, kind: str, known: dict[str, Model], core: Any, where: str = "$") -> list[str]:
    """What is wrong with a value.

    Args:
        value: Part of a manifest.
        kind: A type as the models write it.
        known: The models.
        core: Checks a value of one of Kubernetes' own types: ``core(type, value)`` gives what is wrong with it.
        where: Path of the value.
    """
    container = _CONTAINERS.fullmatch(kind)
    if container:
        expected = dict if container[1] == "dict" else list
        if not isinstance(value, expected):
            return [f"{where} is {type(value).__name__}, expected {kind}"]
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [line for key, item in items for line in check(item, container[2], known, core, f"{where}.{key}")]
    if kind in _SCALARS:
        right = isinstance(value, _SCALARS[kind]) and (kind != "int" or not isinstance(value, bool))
        return [] if right else [f"{where} is {value!r}, expected {kind}"]
    if kind not in known:
        return [f"{where}: {line}" for line in core(kind, value)]
    model = known[kind]
    if not isinstance(value, dict):
        return [f"{where} is {type(value).__name__}, expected {kind}"]
    lines = [f"{where}.{key} is no field of {kind}" for key in value.keys() - model.types.keys()]
    lines += [f"{where}.{key} is missing" for key in model.required - value.keys()]
    for key in value.keys() & model.types.keys():
        lines += check(value[key], model.types[key], known, core, f"{where}.{key}")
    return lines


__all__ = ["Model", "PackageNotFoundError", "check", "models"]
