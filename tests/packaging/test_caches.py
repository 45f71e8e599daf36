"""Caches of modules live as long as the process: each holds one value, or has a bound in bytes that a test fills."""

from __future__ import annotations

import ast
import gc
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from modelyard.clients.http import decode_fields, encode_fields
from tests.packaging.conftest import ROOT, library_files

#: What each may take, in bytes, and why it is that; each has its reason beside it in the code.
BOUNDS = {
    "clients/modelyard/clients/http/_short.py": "32 heads of 1 KiB and what they say: 8 MiB, filled below",
    "export/modelyard/artifact/_manifest.py": "the annotations of some 20 classes: 100 KiB",
    "export/modelyard/reports/_pages.py": "the compiled templates of 4 packages, 2 files each: 1 MiB",
    "serving/modelyard/serving/access/_credentials.py": "64 certificates of 100 KiB at most, by TLS: 7 MiB",
    "serving/modelyard/serving/config/_models.py": "1,000 names of folders of 255 bytes: 1 MiB",
    "training/modelyard/training/data/_entries.py": "one data set",
}


def _cached() -> Iterator[tuple[str, str, ast.FunctionDef | ast.AsyncFunctionDef | None]]:
    """Each use of a cache of functools: its file, the cache, and the function that it decorates."""
    for path in library_files():
        text = path.read_text("utf-8")
        if "cache" not in text:
            continue
        tree = ast.parse(text)
        decorated = {
            id(part): node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for decorator in node.decorator_list
            for part in ast.walk(decorator)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Name | ast.Attribute):
                name = node.id if isinstance(node, ast.Name) else node.attr
                if name in {"cache", "lru_cache"}:
                    yield str(path.relative_to(ROOT)), name, decorated.get(id(node))


def test_a_cache_holds_one_value_or_has_a_bound() -> None:
    found = list(_cached())
    for path, kind, function in found:
        # Without a decorator it is another thing of this name, such as an option.
        if kind == "cache" and function is not None:
            assert not ast.unparse(function.args), f"{path}: {function.name} keeps a value for each argument for ever"
    assert {path for path, kind, _ in found if kind == "lru_cache"} == set(BOUNDS)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(lambda number: encode_fields([("x-request", f"{number:01000d}")]), id="short"),
        pytest.param(lambda number: encode_fields([("x-request", f"{number:060000d}")]), id="long"),
        # One byte for each field: what is read takes the most.
        pytest.param(lambda number: b"\x88" * 900 + encode_fields([("x-request", f"{number:050d}")]), id="many fields"),
    ],
)
def test_heads_that_differ_each_time_do_not_add_up(block: Callable[[int], bytes]) -> None:
    tracemalloc.start()
    try:
        for number in range(100):
            decode_fields(block(number))
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 8 << 20
    finally:
        tracemalloc.stop()
