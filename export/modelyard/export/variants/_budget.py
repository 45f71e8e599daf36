"""What a variant of lower precision may cost: its figures, and whether they are inside the budget."""

from __future__ import annotations

import numpy as np

from modelyard.artifact import Refusal, format_key
from modelyard.export.publish import Budget
from modelyard.export.sources import FLOATS, Reference, is_constant
from modelyard.export.verification import Verification


def accuracy_drop(reference: Reference, check: Verification) -> float | None:
    """The accuracy that a variant costs, as a share.

    A signature that computes the graph of the labelled one is judged by the labels; any other by the share of examples
    of which classes, integers or strings changed.
    """
    drops = [share for name, share in check.changed.items() if not _is_labelled(reference, name)]
    before, after = check.report.metric_before, check.report.metric_after
    if before is not None and after is not None:
        drops.append(max(before - after, 0.0))
    return max(drops, default=None)


def check_budget(reference: Reference, check: Verification, budget: Budget) -> Refusal | None:
    """Holds a variant to its budget."""
    report = check.report
    place = f"Variant {format_key(check.format, check.precision)} in {check.served_by}"
    drop = report.accuracy_drop
    if drop is not None and drop > budget.max_accuracy_drop:
        figures = ""
        if report.metric_before is not None and report.metric_after is not None:
            figures = f" (the metric was {report.metric_before:.2%} and is {report.metric_after:.2%})"
        reason = (
            f"{place}: the accuracy drops by {drop:.2%}{figures}; the budget allows {budget.max_accuracy_drop:.2%}."
        )
        return _refusal(check, "accuracy_drop", drop, budget.max_accuracy_drop, reason)
    if budget.max_abs_error is not None:
        if report.max_abs_error <= budget.max_abs_error:
            return None
        reason = (
            f"{place}: the largest absolute error is {report.max_abs_error:.3g}; the budget allows "
            f"{budget.max_abs_error:g}."
        )
        return _refusal(check, "abs_error", report.max_abs_error, budget.max_abs_error, reason)
    for name, share in check.spread_error.items():
        # Floats alone tell nothing of accuracy; where there is more, the drop does.
        if share <= budget.max_spread_error or _is_labelled(reference, name) or _shows_classes(reference, name):
            continue
        reason = (
            f"{place}: no class of signature {name!r} shows its accuracy, and the largest error is {share:.2%} of an "
            f"output's spread; the budget allows {budget.max_spread_error:.2%}. Say what is right with --max-abs-error."
        )
        return _refusal(check, "spread_error", share, budget.max_spread_error, reason)
    return None


def _is_labelled(reference: Reference, name: str) -> bool:
    signatures = reference.source.signatures
    return reference.measured is not None and signatures[name].compute == signatures[reference.measured].compute


def _shows_classes(reference: Reference, name: str) -> bool:
    """Whether an integer or string output tells examples apart, and is no input that is handed through."""
    inputs = [np.asarray(array) for array in reference.data.inputs[name].values()]
    answers = next(iter(reference.outputs[name].values()))
    for spec in reference.source.signatures[name].outputs:
        values = answers.get(spec.name)
        if spec.dtype in FLOATS or values is None or is_constant(values):
            continue
        if not any(np.array_equal(values, array) for array in inputs):
            return True
    return False


def _refusal(check: Verification, measure: str, value: float, allowed: float, reason: str) -> Refusal:
    return Refusal(
        format=check.format,
        precision=check.precision,
        runtime=check.served_by,
        measure=measure,
        value=value,
        allowed=allowed,
        reason=reason,
    )
