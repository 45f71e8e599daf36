"""Write the blocking client from the asynchronous one, as httpcore's "unasync" does: ``make client``.

A test calls :func:`generate` and compares its result with what is checked in.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

API = Path(__file__).resolve().parent / "modelyard" / "clients" / "api"
SOURCE, GENERATED = API / "_async_client.py", API / "_client_generated.py"
_HEAD = '"""The blocking client, generated from ``_async_client.py`` by ``make client``: do not edit."""\n'
_REPLACED = (
    (r'\A"""(?:.|\n)*?"""\n', _HEAD),
    (r" \| AsyncIterable\[Row\]", ""),
    (r"Awaitable\[(\w+)\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (r"\b(?:async|await) ", ""),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"connect_async", "connect"),
    (r"\baio\b", "lean"),
    (r"_async_runner", "_runner"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"Makes an asynchronous client", "Makes a client"),
    (r"A client for one event loop, that of its first call", "A client that threads may share"),
)


def generate() -> str:
    """Return the text of the blocking client.

    Raises:
        CalledProcessError: ruff refused the text.
    """
    text = SOURCE.read_text("utf-8")
    for pattern, by in _REPLACED:
        text = re.sub(pattern, by, text)
    for command in (["check", "--fix-only", "--select=I,F401"], ["format"]):
        arguments = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(GENERATED), "-"]
        text = subprocess.run(arguments, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    GENERATED.write_text(generate(), "utf-8")
