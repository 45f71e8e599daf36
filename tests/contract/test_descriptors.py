"""Descriptors: more than the usual limit, which a process may raise itself, and the first three."""

from __future__ import annotations

import contextlib
import http.client
import sys
from pathlib import Path

from tests.support.models import publish_affine
from tests.support.server import serve

SOFT = 128


def test_the_limit_that_a_process_begins_with_is_not_that_of_connections(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -Sn {SOFT}\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    with (
        serve(tmp_path / "affine", model="affine", log_dir=tmp_path, python=str(python)) as server,
        contextlib.ExitStack() as opened,
    ):
        for _ in range(2 * SOFT):
            connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=20)
            opened.callback(connection.close)
            connection.request("GET", "/v2/health/live")
            response = connection.getresponse()
            response.read()
            assert response.status == 200


def test_standard_streams_that_are_closed_are_no_sockets(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@" <&- >&- 2>&-\n')
    python.chmod(0o755)
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    with serve(
        tmp_path / "affine", model="affine", log_dir=tmp_path, python=str(python), flags=["--access_log=all"]
    ) as server:
        assert server.post("/v1/models/affine:predict", b'{"instances": [2.0]}')[0] == 200
    # uvloop ended the process by an assertion where one of its own had such a number.
    assert server.process.returncode == 0
