"""What the tests of deploy/ read it with."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from modelyard.serving.metrics import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
_METRIC = re.compile(r"(:[a-z_]+:[a-z_:]+|\bprocess_\w+)")


def documents(path: Path) -> list[dict[str, Any]]:
    """Every document of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document is not None]


@cache
def published_schema(name: str) -> dict[str, Any]:
    """A schema that its project publishes, as the package check-jsonschema ships it."""
    text = (files("check_jsonschema") / "builtin_schemas" / "vendor" / f"{name}.json").read_text()
    schema: dict[str, Any] = json.loads(text)
    return schema


def schema_errors(name: str, document: dict[str, Any]) -> list[str]:
    """What a published schema finds wrong."""
    schema = published_schema(name)
    validator = jsonschema.validators.validator_for(schema)(schema)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def metrics_in(expression: str) -> list[str]:
    """The metrics that a PromQL expression names."""
    return _METRIC.findall(expression)


def exposed_metrics() -> set[str]:
    """Every metric name that the server's page can have."""
    names: set[str] = set()
    for family in FAMILIES:
        suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        names |= {f"{family.name}{suffix}" for suffix in suffixes}
    return names
