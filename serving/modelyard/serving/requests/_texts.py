"""Texts for callers, who need not know where files are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

#: Absolute paths and URLs of stores, but not the URLs that this server answers.
_PATH = re.compile(
    r"(?<![\w.~:/-])(?!/v[12]/)(?:[a-z][a-z0-9+.-]*://|/)[^\s\"'`,;()<>\[\]{}|]*[^\s\"'`,;()<>\[\]{}|.:]"
)


def without_paths(text: str, roots: Iterable[object] = ()) -> str:
    """A text in which of every path only the last part is left: the log has all of it.

    ``roots`` are folders that it may name, whatever characters they have; parts below them stay, too.
    """
    for root in sorted((str(root) for root in roots), key=len, reverse=True):
        text = text.replace(root, Path(root).name)
    return _PATH.sub(lambda match: match[0].rstrip("/").rpartition("/")[2], text)
