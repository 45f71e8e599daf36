"""The rules of each target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from modelyard.export.rewrites import _arithmetic, _arrays, _images, _linalg, _lists, _spectra
from modelyard.export.rewrites._replay import Rule, Rules

Target = Literal["onnx", "tflite"]
#: What prints or checks has no result: a replay does not reach it.
_DROPPED = {name: Rule(lambda node, inputs: None) for name in ("PrintV2", "StringFormat")}
#: tf2onnx knows these in TensorFlow's own loops, not in those that are built again.
_LISTS = {op: replace(rule, alone=False) for op, rule in _lists.RULES.items()}
_RULES: dict[Target, Rules] = {
    "onnx": {**_linalg.ONNX, **_arithmetic.ONNX, **_arrays.ONNX, **_images.ONNX, **_LISTS},
    "tflite": {**_linalg.TFLITE, **_arithmetic.TFLITE, **_arrays.TFLITE, **_images.TFLITE, **_lists.RULES, **_DROPPED},
}


def rewrite_rules(target: Target, tables: Mapping[str, Any], *, complex_numbers: bool) -> Rules:
    """What the converter to a format has to be spared.

    Args:
        target: The format.
        tables: Lookup tables of the graph by the ``shared_name`` of their nodes.
        complex_numbers: Those of complex numbers too, which leave nothing for a second time.
    """
    others = {**_RULES[target], **(_arrays.lookup_rules(tables) if target == "tflite" else {})}
    if not complex_numbers:
        return others
    both = {op: _first_of(rule, others[op]) for op, rule in _spectra.RULES.items() if op in others}
    return {**others, **_spectra.RULES, **both}


def _first_of(first: Rule, second: Rule) -> Rule:
    def build(node: Any, inputs: Sequence[Any]) -> Any:
        return (first if first.applies(node) else second).build(node, inputs)

    return Rule(build, lambda node: first.applies(node) or second.applies(node))
