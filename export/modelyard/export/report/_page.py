"""What the page shows, section by section; ``templates/report.html`` lays it out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from modelyard.artifact import Latency, Refusal, RuntimeChoice, Source, format_key
from modelyard.export.publish import Budget
from modelyard.export.report._examples import MOST_CLASSES, Classes, worst_cards
from modelyard.export.report._latency import describe_choice, latency_bars, latency_table
from modelyard.export.sources import Reference
from modelyard.export.verification import ERROR_EDGES, Verification
from modelyard.reports import render_page

REPORT_NAME = "report.html"


@dataclass(frozen=True, kw_only=True)
class ReportContent:
    """Everything the page shows; ``skipped`` has the reasons by format, ``choices`` the best first."""

    model: str
    number: int
    created: str
    source: Source
    reference: Reference
    checks: Mapping[str, Verification]
    skipped: Mapping[str, str]
    latency: tuple[Latency, ...]
    max_abs_error: float
    choices: tuple[RuntimeChoice, ...] = ()
    refused: tuple[Refusal, ...] = ()
    budget: Budget = Budget()
    sizes: Mapping[str, int] = field(default_factory=dict)


def render_report(content: ReportContent) -> str:
    """The page as HTML text, with no reference to anything outside it."""
    reference, checks = content.reference, content.checks
    signatures = reference.source.signatures
    stochastic = [(key, each) for key, check in checks.items() for each in check.report.stochastic]
    labelled = reference.data.labels is not None and reference.measured is not None
    header, rows = latency_table(content.latency, content.choices, list(signatures))
    return render_page(
        "modelyard.export.report",
        "report.html",
        extra="export",
        content=content,
        verdicts=_verdicts(content),
        failures=[
            *(f"{name} was left out." for name in content.skipped),
            *(f"{_name(each)} was refused." for each in content.refused),
        ],
        refused_name=_name,
        random=[
            (
                key, each.signature, each.output, f"{each.examples} × {each.draws}", each.elements,
                f"{each.distance:.3f}", f"{each.p_value:.2g}",
            )
            for key, each in stochastic
        ],
        significance=stochastic[0][1].significance if stochastic else None,
        histograms=[_histogram(key, check, content) for key, check in checks.items()],
        layers=[
            (key, kept.layer, kept.operator, kept.graph, "without bound" if kept.error is None else f"{kept.error:.1%}")
            for key, check in checks.items()
            for kept in check.kept
        ],
        latency=[(name, latency_bars(content.latency, name)) for name in signatures],
        latency_header=header,
        latency_rows=rows,
        signatures=[
            (name, kind, spec.name, spec.dtype, "unknown" if spec.shape is None else list(spec.shape))
            for name, signature in signatures.items()
            for kind, specs in (("input", signature.inputs), ("output", signature.outputs))
            for spec in specs
        ],
        classes=Classes(reference, checks) if labelled else None,
        most_classes=MOST_CLASSES,
        worst_exact=worst_cards(reference, checks, exact=True),
        worst_variants=worst_cards(reference, checks, exact=False),
        facts=_facts(content.source),
    )  # fmt: skip


def _verdicts(content: ReportContent) -> list[str]:
    exact = [check for check in content.checks.values() if check.precision == "float32"]
    verdicts = []
    if exact:
        worst = max(check.report.max_abs_error for check in exact)
        examples = max(check.report.examples for check in exact)
        count = len(exact)
        verdicts.append(
            f"{count} {'format computes' if count == 1 else 'formats compute'} what the trained model computes: "
            f"{examples:,} examples compared, largest absolute error {worst:.2g}, allowed {content.max_abs_error:g}."
        )
    variants = [key for key, check in content.checks.items() if check.precision != "float32"]
    if variants:
        budget = content.budget
        verb = "is" if len(variants) == 1 else "are"
        error = "" if budget.max_abs_error is None else f" and an absolute error of {budget.max_abs_error:g}"
        verdicts.append(
            f"{' and '.join(variants)} {verb} inside the budget, an accuracy drop of "
            f"{budget.max_accuracy_drop:.2%}{error}."
        )
    if content.choices:
        verdicts.append(describe_choice(content.choices))
    return verdicts


def _name(refusal: Refusal) -> str:
    runtime = f" in {refusal.runtime}" if refusal.runtime else ""
    return f"{format_key(refusal.format, refusal.precision)}{runtime}"


def _histogram(key: str, check: Verification, content: ReportContent) -> dict[str, object]:
    limit = content.max_abs_error if check.precision == "float32" else content.budget.max_abs_error
    first = round(math.log10(ERROR_EDGES[0]))
    return {
        "key": key,
        "format": check.format,
        "counts": check.histogram,
        "first_decade": first,
        "limit": limit,
        # Where the limit is between the left and the right edge, as a share.
        "limit_share": (1 + math.log10(limit) - first) / len(check.histogram) if limit else None,
    }


def _facts(source: Source) -> dict[str, object]:
    facts: dict[str, object] = {"Task": source.task, "Commit": source.git_commit, "Training data": source.data}
    facts |= {f"Metric {name}": f"{value:.6g}" for name, value in source.metrics.items()}
    options = dict(source.config)
    # What modelyard's own training says of a run is long: the rest is in the manifest.
    run = options.pop("run") if isinstance(options.get("run"), Mapping) else {}
    facts |= {f"Option {name}": json.dumps(value, default=str) for name, value in options.items()}
    facts |= {f"Run: {name}": json.dumps(run[name]) for name in ("made_by", "arguments", "packages") if name in run}
    return {name: value for name, value in facts.items() if value}
