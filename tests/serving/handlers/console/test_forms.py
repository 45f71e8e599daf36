"""Forms as browsers send them: every byte of a file arrives, and what is no form is refused."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelyard.errors import InvalidRequestError
from modelyard.serving.handlers.console._forms import read_form


def sent(texts: dict[str, str], files: list[tuple[str, bytes]]) -> tuple[bytes, str]:
    request = httpx.Request("POST", "http://x/", data=texts, files=[("files", item) for item in files])
    return request.read(), request.headers["content-type"]


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])), st.lists(st.binary(min_size=1), min_size=1))
def test_texts_and_files_come_through(text: str, files: list[bytes]) -> None:
    form = read_form(*sent({"body": text}, [(f"{index}.png", data) for index, data in enumerate(files)]))
    assert form.texts["body"] == text
    assert [(part.filename, part.data) for part in form.files] == [
        (f"{index}.png", data) for index, data in enumerate(files)
    ]


@pytest.mark.parametrize("data", [b"\r\n", b"--", b"\r\n--\r\n", b"\r", b"\n\r\n\r\n", b"\x00" * 3, bytes(range(256))])
def test_bytes_that_look_like_the_end_of_a_part(data: bytes) -> None:
    form = read_form(*sent({"signature": "s"}, [("ö.png", data)]))
    assert form.files[0].data == data
    assert form.texts == {"signature": "s"}


def test_a_file_that_was_not_chosen_is_none() -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="files"; filename=""\r\n\r\n\r\n--b--\r\n'
    assert read_form(body, "multipart/form-data; boundary=b").files == []


@pytest.mark.parametrize(
    ("body", "kind", "complaint"),
    [
        (b"a=1", "application/x-www-form-urlencoded", "expected multipart/form-data"),
        (b"a=1", "", "expected multipart/form-data"),
        (b"--b--", "multipart/form-data", "expected multipart/form-data"),
        (b"nothing", "multipart/form-data; boundary=b", "does not end"),
        (b"--b\r\nx", "multipart/form-data; boundary=b", "does not end"),
        (b"--b\r\nno header\r\n--b--", "multipart/form-data; boundary=b", "no header"),
        (b"--b" + b"\r\n--b" * 100_000, "multipart/form-data; boundary=b", "more than 64 parts"),
    ],
)
def test_what_is_no_form_is_refused(body: bytes, kind: str, complaint: str) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        read_form(body, kind)
