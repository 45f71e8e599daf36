"""What a browser sends for a form with files (RFC 7578)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser

from modelyard.errors import InvalidRequestError

_MAX_PARTS = 64


@dataclass(frozen=True, kw_only=True)
class Part:
    """One field, or one file of a field."""

    name: str
    #: Empty for a field that is no file.
    filename: str
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Form:
    """The fields of a form."""

    #: By name.
    texts: Mapping[str, str]
    #: Those that are not empty.
    files: Sequence[Part]


def read_form(body: bytes, content_type: str) -> Form:
    """Reads ``multipart/form-data``."""
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if header.get_content_type() != "multipart/form-data" or not boundary:
        raise InvalidRequestError(f"The form has the type {content_type!r}; expected multipart/form-data.")
    # The body begins with a boundary; all others have a line's end before them.
    sections = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1", "replace"), _MAX_PARTS + 1)
    if len(sections) < 2 or not sections[-1].startswith(b"--"):
        raise InvalidRequestError(f"The form does not end, or has more than {_MAX_PARTS} parts.")
    parts = [_part(section) for section in sections[1:-1]]
    texts = {part.name: part.data.decode("utf-8", "replace") for part in parts if not part.filename}
    return Form(texts=texts, files=[part for part in parts if part.filename and part.data])


def _part(section: bytes) -> Part:
    head, empty, data = section.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    if not empty:
        raise InvalidRequestError("A part of the form has no header.")
    fields = HeaderParser().parsestr(head.decode("utf-8", "replace"))
    name = fields.get_param("name", "", "content-disposition")
    filename = fields.get_param("filename", "", "content-disposition")
    return Part(name=str(name), filename=str(filename), data=data)
