"""Which layers variants leave in float32, and what each of them would have cost."""

from __future__ import annotations

from collections.abc import Mapping

from modelyard.export.report._markup import Markup, element, section, table
from modelyard.export.verification import Verification


def float_layers_section(checks: Mapping[str, Verification]) -> Markup:
    """A table of the layers that stay in float32.

    Args:
        checks: By format or variant.

    Returns:
        Nothing where there are none.
    """
    rows = [
        (
            element("code", None, key),
            element("code", None, kept.layer),
            kept.operator,
            kept.graph,
            "without bound" if kept.error is None else f"{kept.error:.1%}",
        )
        for key, check in checks.items()
        for kept in check.kept
    ]
    if not rows:
        return Markup("")
    header = ("Variant", "Layer", "Operator", "Graph", "Error alone")
    return section(
        "Layers in float32",
        table(header, rows, numbers=frozenset({4})),
        lead="With every layer in lower precision these variants were outside the budget; these layers stay in "
        "float32. Error alone: with nothing but this layer converted, the root mean square error of an output as a "
        "share of its standard deviation; of integers and strings, the share that changed.",
    )
