"""JSON text to Python values, with the rules and limits of a public server.

Numbers and objects go through functions of Python, and texts are searched slice by slice: while a large body is read,
other threads get their turn.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

from modelyard.errors import InvalidRequestError, RequestTooLargeError

#: What ``json`` says, in the words of upstream's parser.
_REASONS = {
    "Expecting value": "Invalid value.",
    "Expecting ',' delimiter": "Missing a comma or } or ] after an object member or array element.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
}
#: A string, or the rest of the text where it does not end. It matches wherever it begins, and never steps back.
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?'
_STRING_OR_INF = re.compile(f"({_STRING})|(?<![A-Za-z])Inf(?![A-Za-z])", re.DOTALL)
#: An escape; the second group holds half of a surrogate pair, which is no character.
_ESCAPE = re.compile(
    r"\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
#: Fewer digits than this are never beyond the range of a double.
_SURELY_FINITE = 300
#: How much is searched while no other thread has its turn: well below a millisecond.
_SLICE = 1 << 17
#: Some seconds of a thread. 40 kB of gzip may hold 20 million numbers, which are within the limit for bytes.
MAX_VALUES = 1 << 24
#: The same for values that no function of Python reads: the GIL is held throughout, for some 100 ms.
_MAX_PLAIN = 1 << 20
_MAX_QUOTE = 256
#: A number, and its place in a list.
_VALUE_BYTES = 32


def parse_object(body: bytes, *, max_depth: int, strict_text: bool = False) -> dict[str, object]:
    """Parses a request body, whose top level must be an object.

    Accepts what upstream accepts: bare NaN, Infinity and Inf, any text after the first complete value, and duplicate
    keys, of which the first wins. Bytes that are no UTF-8 are carried in strings as ``surrogateescape`` has them, or
    refused where ``strict_text``.
    """
    _check_cost(body, max_depth)
    try:
        text = body.decode("utf-8", "strict" if strict_text else "surrogateescape").lstrip(" \t\n\r\ufeff")
    except UnicodeDecodeError as exc:
        raise InvalidRequestError(f"JSON Parse error: The text is not UTF-8. at offset: {exc.start}") from exc
    if not text:
        raise InvalidRequestError("JSON Parse error: The document is empty. at offset: 0")
    try:
        value, end = _decode(text)
    except json.JSONDecodeError as exc:
        raise InvalidRequestError(f"JSON Parse error: {_REASONS.get(exc.msg, exc.msg)} at offset: {exc.pos}") from exc
    except OverflowError as exc:
        raise InvalidRequestError(f"JSON Parse error: Number too big to be stored in double. ({exc})") from exc
    _check_escapes(text, end)
    if not isinstance(value, dict):
        raise InvalidRequestError(f"JSON Value: {quote(value)} Is not object")
    return value


def _decode(text: str) -> tuple[object, int]:
    decoder = json.JSONDecoder(object_pairs_hook=_first_wins, parse_float=_double, parse_int=_integer)
    try:
        return decoder.raw_decode(text)
    except json.JSONDecodeError:
        # Upstream's parser also knows the short spelling of infinity, which Python's does not.
        if "Inf" not in text:
            raise
        return decoder.raw_decode(_STRING_OR_INF.sub(lambda match: match[1] or "Infinity", text))


def _double(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise OverflowError(f"{text[:40]} is beyond its range")
    return value


def _integer(text: str) -> int:
    if len(text) > _SURELY_FINITE:
        # Python does not read thousands of digits as an integer.
        _double(text)
    return int(text)


def _first_wins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        result.setdefault(key, value)
    return result


def objects_size(body: bytes) -> int:
    """The bytes of the values that a JSON text is parsed to, about: there is a comma between any two."""
    return _count(body, b",") * _VALUE_BYTES


def _count(body: bytes, character: bytes) -> int:
    return sum(body.count(character, at, at + _SLICE) for at in range(0, len(body), _SLICE))


def _check_cost(body: bytes, max_depth: int) -> None:
    """Refuses deep nesting and too many values before they are parsed; costs three counts for ordinary bodies."""
    if _count(body, b"[") + _count(body, b"{") <= max_depth and _count(body, b",") < _MAX_PLAIN:
        return
    values, plain, depth = 1, 0, 0
    for part in _outside_strings(body):
        values += part.count(b",")
        # Strings, lists, null and true, false.
        plain += sum(part.count(each) for each in (b'"', b"[", b"u", b"f"))
        characters = np.frombuffer(part, dtype=np.uint8)
        opens = (characters == ord("[")) | (characters == ord("{"))
        closes = (characters == ord("]")) | (characters == ord("}"))
        steps = np.cumsum(opens[opens | closes].astype(np.int32) * 2 - 1)
        if len(steps):
            if depth + int(steps.max()) > max_depth:
                raise InvalidRequestError(
                    f"JSON Parse error: nested deeper than {max_depth} levels; expected fewer. "
                    "A tensor needs one level per dimension."
                )
            depth += int(steps[-1])
    for count, limit, what in (
        (values, MAX_VALUES, "values"),
        (plain, _MAX_PLAIN, "strings, lists, nulls and booleans"),
    ):
        if count > limit:
            raise RequestTooLargeError(
                f"The JSON text has more than {limit} {what}; send fewer rows per request, or use gRPC."
            )


def _outside_strings(body: bytes) -> Iterator[bytes]:
    """A text with each string as one quotation mark, slice by slice."""
    start, inside = 0, 0
    while start < len(body):
        part = body[start : start + _SLICE]
        # No escape is cut in two.
        if (len(part) - len(part.rstrip(b"\\"))) % 2:
            part = part[:-1] or part
        start += len(part)
        pieces = part.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b'"'.join(pieces[inside::2])
        inside = (inside + len(pieces) - 1) % 2


def _check_escapes(text: str, end: int) -> None:
    """Refuses escapes of half a surrogate pair, as upstream does: they are no characters."""
    halves = ("\\ud", "\\uD")
    if all(text.find(half, at, at + _SLICE + 2) < 0 for at in range(0, end, _SLICE) for half in halves):
        return
    at = text.find("\\", 0, end)
    while at >= 0:
        match = _ESCAPE.match(text, at, end)
        if match is None:
            return
        if match[2]:
            raise InvalidRequestError(
                f"JSON Parse error: The surrogate pair in string is invalid. at offset: {match.start()}"
            )
        at = text.find("\\", match.end(), end)


def signature_in(document: Mapping[str, object]) -> str:
    """The signature that a body asks for; empty for the default."""
    signature = document.get("signature_name", "")
    if not isinstance(signature, str):
        raise InvalidRequestError(
            f"JSON Value: {quote(document)} not formatted correctly. 'signature_name' key must be a string value."
        )
    return signature


def quote(value: object) -> str:
    """A JSON value as error messages quote it, cut at 256 characters."""
    text = ""
    for part in _encoded(value):
        text += part
        if len(text) > _MAX_QUOTE:
            return text[:_MAX_QUOTE] + "..."
    return text


def _encoded(value: object) -> Iterator[str]:
    """The parts of a JSON text. Long strings are cut, for they are not quoted whole."""
    if isinstance(value, dict):
        yield "{"
        for number, (key, item) in enumerate(value.items()):
            yield (", " if number else "") + json.dumps(key[: _MAX_QUOTE + 1]) + ": "
            yield from _encoded(item)
        yield "}"
    elif isinstance(value, list):
        yield "["
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _encoded(item)
        yield "]"
    else:
        yield json.dumps(value[: _MAX_QUOTE + 1] if isinstance(value, str) else value)


def type_name(value: object) -> str:
    """Name of a JSON value's type, in the words of upstream's parser."""
    if value is None:
        return "Null"
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, (int, float)):
        return "Number"
    return "Object" if isinstance(value, dict) else "Array" if isinstance(value, list) else "String"
