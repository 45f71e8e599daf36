"""Changes of Python, as cosmic-ray knows them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

#: These change annotations, or mean the same for the values that are compared here.
_SAME = re.compile(r"BitOr|_Is$|_IsNot$|_Is_Eq|_IsNot_NotEq|RemoveDecorator")


def python_changes(module: Path) -> Iterator[tuple[int, str]]:
    """All changes of a module: the line, and the whole text with it."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    text = module.read_text("utf-8")
    nodes = list(ast_nodes(get_ast_from_path(module)))
    for name in operator_names():
        kind = get_operator(name)
        if kind.arguments() or _SAME.search(name):
            continue
        places = [start for node in nodes for start, _ in kind().mutation_positions(node)]
        for occurrence, (line, _) in enumerate(places):
            changed = mutate_code(text, kind(), occurrence)
            if changed is not None and changed != text:
                yield line, changed
