"""The grammar of TensorFlow Serving's REST URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from modelyard.errors import InvalidModelSpecError, InvalidRequestError
from modelyard.serving.requests import MAX_VERSION, ModelSpec, whole_number

Verb = Literal["predict", "classify", "regress", "metadata", "status"]

_VERBS: Mapping[str, Verb] = {"predict": "predict", "classify": "classify", "regress": "regress"}
_SPEC = r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?"
_INFER = re.compile(_SPEC + r":(classify|regress|predict)", re.IGNORECASE | re.ASCII)
#: A common slip.
_SLASH = re.compile(_SPEC + r"/(classify|regress|predict)", re.IGNORECASE | re.ASCII)
_METADATA = re.compile(_SPEC + r"/metadata", re.IGNORECASE | re.ASCII)
_STATUS = re.compile(r"/v1/models(?:/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?)?", re.IGNORECASE | re.ASCII)


class NoSuchUrl(Exception):
    """The path is not below the API's root."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """The operation and the servable of a URL."""

    verb: Verb
    #: The servable; its signature is in the body.
    spec: ModelSpec


def parse_route(method: str, path: str) -> Route:
    """Parses method and path, with its query string, as upstream's router does."""
    if not path.lower().startswith("/v1/"):
        raise NoSuchUrl(
            f"Not found: {method} {path}. The API is below /v1/models/ and /v2/; health is at /v2/health/ready, "
            "metrics are at /metrics."
        )
    malformed = InvalidRequestError(f"Malformed request: {method} {path}{_hint(method, path)}")
    if method == "POST" and (match := _INFER.fullmatch(path)):
        name, version, label, verb = match.groups()
        # Upstream's pattern matches upper-case verbs too, but its dispatch does not know them.
        if verb not in _VERBS:
            raise malformed
        return Route(verb=_VERBS[verb], spec=_spec(name, version, label))
    if method == "GET":
        if match := _METADATA.fullmatch(path):
            return Route(verb="metadata", spec=_spec(*match.groups()))
        if match := _STATUS.fullmatch(path):
            name, version, _ = match.groups()
            if name is None:
                raise InvalidModelSpecError("Missing model name in request.")
            # A label on a status call is ignored.
            return Route(verb="status", spec=_spec(name, version, None))
    raise malformed


def _hint(method: str, path: str) -> str:
    """What probably was meant, after upstream's own words."""
    if _INFER.fullmatch(path) and method != "POST":
        return "; expected the method POST"
    if match := _SLASH.fullmatch(path):
        return f"; expected POST and a colon: {path[: match.start(4) - 1]}:{match[4].lower()}"
    return ""


def _spec(name: str, version: str | None, label: str | None) -> ModelSpec:
    number = None if version is None else whole_number(version, MAX_VERSION)
    if version is not None and number is None:
        raise InvalidRequestError(f"Failed to convert version: {version} to numeric.")
    return ModelSpec(name=unquote(name), version=number, label=None if label is None else unquote(label))
