"""Bodies of SageMaker's own TensorFlow container: rows without names, as JSON, JSON lines or CSV."""

from __future__ import annotations

import json
import re

_JSON = frozenset({"application/json", "application/jsonlines", "application/jsons"})
_CSV = "text/csv"
#: TensorFlow Serving's own form: passed on as it is.
_NAMED = re.compile(rb'"(?:instances|inputs|examples)"\s*:')
#: Values with nothing between them.
_LINES = re.compile(rb"[}\]]\s*[\[{]")
_ROWS = re.compile(rb"\s*\[\s*\[")
#: What JSON has as it stands in a table.
_NUMBERS_OR_QUOTED = re.compile(r'\s*["\d.+-]')


def as_instances(body: bytes, content_type: str) -> bytes:
    """The body as TensorFlow Serving has it; as it came where it is that, or of a type that has no such form."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == _CSV:
        return _instances(_csv_rows(body.decode("utf-8", "replace")))
    if kind not in _JSON or not body.strip() or _NAMED.search(body):
        return body
    lines = [line for line in body.splitlines() if line.strip()]
    if len(lines) > 1 and (kind != "application/json" or _LINES.search(body)):
        return _instances(b"[%b]" % b",".join(lines))
    return _instances(body if _ROWS.match(body) else b"[%b]" % body)


def _csv_rows(text: str) -> bytes:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not _NUMBERS_OR_QUOTED.match(text):
        lines = [",".join(json.dumps(field) for field in line.split(",")) for line in lines]
    rows = [f"[{line}]" if "," in line else line for line in lines]
    return f"[{','.join(rows)}]".encode()


def _instances(rows: bytes) -> bytes:
    return b'{"instances": %b}' % rows
