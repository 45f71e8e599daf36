"""Plans: small TOML or YAML files that say what to send, in which shape, and what must be kept."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modelyard.errors import ConfigurationError
from modelyard.lazy import needs_extra

_TABLES: Mapping[str, tuple[str, ...]] = {
    "load": ("arrivals", "kinds", "shape", "seed"),
    "limits": (),
}


def read_plan(path: Path) -> dict[str, Any]:
    """Read a TOML or YAML plan: its tables ``load`` and ``limits``, as far as it has them."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"Cannot read the plan {path}: {exc}.") from exc
    values = _yaml(text, path) if path.suffix in (".yaml", ".yml") else _toml(text, path)
    for name, table in values.items():
        if name not in _TABLES or not isinstance(table, dict):
            raise ConfigurationError(f"{path}: {name!r} is not known; expected the tables {', '.join(_TABLES)}.")
        unknown = set(table) - set(_TABLES[name])
        if _TABLES[name] and unknown:
            raise ConfigurationError(
                f"{path}: {name} has {', '.join(sorted(map(str, unknown)))}; expected only {', '.join(_TABLES[name])}."
            )
    load = values.get("load", {})
    if load.get("arrivals", "poisson") not in ("poisson", "constant"):
        raise ConfigurationError(f"{path}: arrivals is {load['arrivals']!r}; expected 'poisson' or 'constant'.")
    if not isinstance(load.get("shape", []), list):
        raise ConfigurationError(f"{path}: shape is {load['shape']!r}; expected a list.")
    kinds, seed = load.get("kinds", ["grpc"]), load.get("seed", 0)
    if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, str) for kind in kinds):
        raise ConfigurationError(f"{path}: kinds is {kinds!r}; expected a list of kinds, such as ['grpc', 'rest'].")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigurationError(f"{path}: seed is {seed!r}; expected a whole number, 0 or more.")
    return values


def _toml(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    # A number of too many digits, or too deep a nest, is no error of TOML's.
    except (ValueError, RecursionError) as exc:
        raise ConfigurationError(f"{path} is not TOML: {exc}.") from exc


def _yaml(text: str, path: Path) -> dict[str, Any]:
    with needs_extra("loadtests", "yaml", purpose=f"Reading {path.name}"):
        import yaml
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise ConfigurationError(f"{path} is not YAML: {exc}.") from exc
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path} holds {type(values).__name__}; expected tables.")
    return values
