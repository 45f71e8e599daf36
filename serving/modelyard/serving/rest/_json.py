"""JSON text to Python values, with the rules and limits of a server that strangers call."""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import Any

import numpy as np

from modelyard.errors import InvalidRequestError
from modelyard.serving.rest._numeric import NumericArray, cut_array, is_placeholder

#: What ``json`` says, in the words of upstream's parser.
_REASONS = {
    "Expecting value": "Invalid value.",
    "Expecting ',' delimiter": "Missing a comma or } or ] after an object member or array element.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
}
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BARE_INF = re.compile(r'("(?:[^"\\]|\\.)*")|(?<![A-Za-z])Inf(?![A-Za-z])')
#: A literal may be beyond a double's range only if it has an exponent of three digits.
_MAYBE_HUGE = re.compile(rb"[eE]\+?[0-9]{3}")
_CHUNK = 1 << 20
#: What stands around an array is remembered up to this size: a client sends the same again and again.
_MAX_KNOWN_BYTES = 1 << 10
_MAX_QUOTE = 256


def parse_object(body: bytes, *, max_depth: int) -> dict[str, Any]:
    """Parses a request body, whose top level must be an object.

    Accepts what upstream accepts: bare NaN, Infinity and Inf, any text after
    the first complete value, and duplicate keys, of which the first wins.

    Args:
        body: UTF-8 text.
        max_depth: Levels of nesting that are accepted.

    Raises:
        InvalidRequestError: Not JSON, not an object, or nested deeper than
            ``max_depth``.
    """
    if not body:
        raise InvalidRequestError("JSON Parse error: The document is empty. at offset: 0")
    cut = cut_array(body)
    if cut is not None and len(cut[1].shape) < max_depth:
        document = _with_array(*cut, max_depth=max_depth)
        if document is not None:
            return document
    return _parse_all(body, max_depth=max_depth)


def _with_array(rest: bytes, array: NumericArray, *, max_depth: int) -> dict[str, Any] | None:
    """The document with its array still as text; None where the general path must look at it."""
    document, path = (_around if len(rest) > _MAX_KNOWN_BYTES else _known_around)(rest, max_depth)
    if not path:
        return None
    # What is remembered must stay as it is.
    result = dict(document)
    if len(path) == 1:
        result[path[0]] = array
    elif len(path) == 2:
        result[path[0]] = {**document[path[0]], path[1]: array}
    else:
        key, index, name = path
        rows = list(document[key])
        rows[index] = {**rows[index], name: array}
        result[key] = rows
    return result


def _around(rest: bytes, max_depth: int) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """The document around an array, and the path to the array; no path where the general path must look at it."""
    try:
        document = _parse_all(rest, max_depth=max_depth)
    except InvalidRequestError:
        # Offsets and quotes in the error must be those of the whole body.
        return {}, ()
    rows, inputs = document.get("instances"), document.get("inputs")
    places: list[tuple[Any, tuple[Any, ...]]] = [(document, ()), (inputs, ("inputs",))]
    if isinstance(rows, list) and len(rows) == 1:
        places.append((rows[0], ("instances", 0)))
    if isinstance(inputs, list):
        # The Open Inference Protocol; shapes are arrays of numbers too.
        places += [
            ({key: value for key, value in item.items() if key == "data"}, ("inputs", index))
            for index, item in enumerate(inputs)
            if isinstance(item, dict)
        ]
    for owner, path in places:
        if isinstance(owner, dict):
            for key, value in owner.items():
                if isinstance(value, dict) and is_placeholder(value):
                    return document, (*path, key)
    return document, ()


_known_around = lru_cache(maxsize=256)(_around)


def _parse_all(body: bytes, *, max_depth: int) -> dict[str, Any]:
    _check_depth(body, max_depth)
    text = body.decode("utf-8", "surrogateescape").lstrip(" \t\n\r\ufeff")
    try:
        value = _decode(text, check_range=_MAYBE_HUGE.search(body) is not None)
    except json.JSONDecodeError as exc:
        reason = "The document is empty." if not text else _REASONS.get(exc.msg, exc.msg)
        raise InvalidRequestError(f"JSON Parse error: {reason} at offset: {exc.pos}") from exc
    except ValueError as exc:
        # Python itself refuses integers of thousands of digits.
        raise InvalidRequestError(f"JSON Parse error: Number too big to be stored in double. ({exc})") from exc
    if not isinstance(value, dict):
        raise InvalidRequestError(f"JSON Value: {quote(value)} Is not object")
    return value


def _decode(text: str, *, check_range: bool) -> Any:
    number = _in_range if check_range else None
    decoder = json.JSONDecoder(object_pairs_hook=_first_wins, parse_float=number)
    try:
        return decoder.raw_decode(text)[0]
    except json.JSONDecodeError:
        # Upstream's parser also knows the short spelling of infinity, which Python's does not.
        spelled = _BARE_INF.sub(lambda match: match[1] or "Infinity", text)
        if spelled == text:
            raise
        return decoder.raw_decode(spelled)[0]


def _in_range(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is beyond the range of a double")
    return value


def _first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        result.setdefault(key, value)
    return result


def _check_depth(body: bytes, max_depth: int) -> None:
    """Refuses deep nesting before any recursive parser sees it; costs two counts for ordinary bodies."""
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return
    plain = np.frombuffer(_STRING.sub(b"", body) if b'"' in body else body, dtype=np.uint8)
    depth = 0
    for start in range(0, len(plain), _CHUNK):
        part = plain[start : start + _CHUNK]
        opens = (part == ord("[")) | (part == ord("{"))
        closes = (part == ord("]")) | (part == ord("}"))
        steps = np.cumsum(opens[opens | closes].astype(np.int32) * 2 - 1)
        if len(steps):
            if depth + int(steps.max()) > max_depth:
                raise InvalidRequestError(
                    f"JSON Parse error: nested deeper than {max_depth} levels; expected fewer. "
                    "A tensor needs one level per dimension."
                )
            depth += int(steps[-1])


def quote(value: Any) -> str:
    """A JSON value as error messages quote it, cut at 256 characters.

    Args:
        value: Any parsed value.
    """
    text = json.dumps(value, default=_listed)
    return text if len(text) <= _MAX_QUOTE else text[:_MAX_QUOTE] + "..."


def _listed(value: Any) -> Any:
    if isinstance(value, NumericArray):
        return value.to_list()
    raise TypeError(f"{type(value).__name__} is no JSON value")


def type_name(value: Any) -> str:
    """Name of a JSON value's type, in the words of upstream's parser.

    Args:
        value: Any parsed value.
    """
    if value is None:
        return "Null"
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, (int, float)):
        return "Number"
    return "Object" if isinstance(value, dict) else "Array" if isinstance(value, list) else "String"


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number (booleans are not).

    Args:
        value: Any parsed value.
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool)
