"""A server that may not start its threads says so, and ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from modelyard.serving.machine import startable_threads

ALLOWED = 8


def test_threads_end_again() -> None:
    before = threading.active_count()
    assert startable_threads(20) == 20
    assert threading.active_count() == before


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv for another user")
def test_the_limit_is_named(tmp_path: Path) -> None:
    # The limit holds for no root; who becomes another user keeps what it takes to read the checkout.
    rights = "+dac_override,+dac_read_search"
    user = ["setpriv", "--reuid=54321", "--clear-groups", f"--inh-caps={rights}", f"--ambient-caps={rights}"]
    command = [sys.executable, "-m", "modelyard.serving", f"--model_base_path={tmp_path}", "--port=0"]
    ended = subprocess.run(
        [*user, "prlimit", f"--nproc={ALLOWED}", *command, f"--grpc_socket_path={tmp_path}/socket"],
        capture_output=True, text=True, timeout=60, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ended.returncode == 1
    assert f"ulimit -u is {ALLOWED}" in ended.stderr
    assert "more threads can be started, and a server needs" in ended.stderr
    assert "Traceback" not in ended.stderr
