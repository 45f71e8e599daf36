"""The exit statuses of commands; those of Locust's users are in ``test_run``, and 130 is in ``test_interrupts``."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.models import publish_pairs
from tests.support.server import free_port, serve

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "import sys; from modelyard.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("pairs")
    publish_pairs(folder / "pairs")
    with serve(folder / "pairs", model="pairs", log_dir=folder) as running:
        yield running.grpc_address


def test_the_exit_status_says_how_it_ended(address: str) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    for expected, host, more in (
        (0, address, ("--max-p50-ms", "20000")),
        (1, address, ("--max-p50-ms", "0.0001")),
        (2, nobody, ()),
        (2, address, ("--model", "shoes")),
        (2, address, ("--no-such-flag",)),
    ):
        arguments = ["run", "-t", "1s", "--model", "pairs", "--kind", "grpc", "--host-grpc", host, *more]
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, "loadtest", *arguments], capture_output=True, text=True, timeout=90,
            check=False,
        )  # fmt: skip
        assert done.returncode == expected, (arguments, done.stdout, done.stderr)


def test_the_page_has_the_rule() -> None:
    _, _, section = (ROOT / "docs" / "loadtesting.md").read_text().partition("### Exit status")
    assert re.findall(r"^\| (\d+) \|", section, re.MULTILINE) == ["0", "1", "2", "130"]
