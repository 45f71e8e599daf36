"""The page: which sections there are and what each says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from modelyard.artifact import Latency, Refusal, RuntimeChoice, Source, VerifyReport, format_key
from modelyard.export.publish import Budget
from modelyard.export.report._charts import error_histogram
from modelyard.export.report._examples import class_section, confusion_section, worst_section
from modelyard.export.report._latency import describe_choice, latency_section
from modelyard.export.report._layers import float_layers_section
from modelyard.export.report._markup import Markup, element, join, section, table
from modelyard.export.report._style import STYLE
from modelyard.export.sources import Reference
from modelyard.export.verification import ERROR_EDGES, Verification

REPORT_NAME = "report.html"


@dataclass(frozen=True, kw_only=True)
class ReportContent:
    """Everything the page shows.

    Attributes:
        model: Name of the model.
        number: The version.
        created: UTC time, ISO 8601.
        source: Where the model came from.
        reference: Signatures, examples and the source's answers.
        checks: By format, how it compared.
        skipped: By optional format that failed, the reason.
        latency: Measurements.
        max_abs_error: What was allowed of float32.
        choices: How it is served, best first.
        refused: Variants and runtimes that were tried and are not served.
        budget: What variants were held to.
        sizes: Bytes of the files of each format or variant.
    """

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
    """The page as HTML text, with no reference to anything outside it.

    Args:
        content: What to show.
    """
    title = f"{content.model}, version {content.number}"
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("title", None, f"{title}: export report"),
        element("style", None, Markup(STYLE)),
    )
    body = element(
        "body",
        None,
        _header(title, content),
        _formats(content),
        _random(content),
        _errors(content),
        float_layers_section(content.checks),
        latency_section(content.latency, content.choices, list(content.reference.source.signatures)),
        _signatures(content),
        confusion_section(content.reference, content.checks),
        class_section(content.reference, content.checks),
        worst_section(content.reference, content.checks),
        _origin(content),
    )
    return f"<!doctype html>\n{element('html', {'lang': 'en'}, head, body)}\n"


def _header(title: str, content: ReportContent) -> Markup:
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
        verb = "is" if len(variants) == 1 else "are"
        verdicts.append(f"{' and '.join(variants)} {verb} inside the budget, {describe_budget(content.budget)}.")
    if content.choices:
        verdicts.append(describe_choice(content.choices))
    said = [f"{name} was left out." for name in content.skipped]
    said += [f"{_name(each)} was refused." for each in content.refused]
    failures = [element("p", {"class": "verdict failed"}, element("strong", None, " ".join(said)))] if said else []
    data = content.reference.data.description
    return element(
        "header",
        None,
        element("h1", None, title),
        element("p", {"class": "quiet"}, f"Exported {content.created}." + (f" Compared on: {data}." if data else "")),
        *(element("p", {"class": "verdict"}, verdict) for verdict in verdicts),
        *failures,
    )


def _formats(content: ReportContent) -> Markup:
    rows = []
    for key, check in content.checks.items():
        packages = ", ".join(f"{package} {version}" for package, version in check.runtime.items())
        size = content.sizes.get(key)
        rows.append(_format_row(key, packages, check.report, size))
        rows += [_format_row(key, runtime, report, None) for runtime, report in check.others.items()]
    rows += [_failed_row(name, "left out", reason) for name, reason in content.skipped.items()]
    rows += [_failed_row(_name(each), "refused", each.reason) for each in content.refused]
    header = (
        "Format", "Result", "Verified with", "Size", "Examples", "Batch sizes", "Max. abs. error", "Max. rel. error",
        "Top-1 agreement", "Accuracy before → after",
    )  # fmt: skip
    return section(
        "Formats",
        table(header, rows, numbers=frozenset({3, 4, 6, 7, 8, 9})),
        lead="Each format was reloaded in its own runtime and compared with the live model, every example at every "
        "batch size. Of float32, integers and strings had to be equal; variants have a budget.",
    )


def _name(refusal: Refusal) -> str:
    runtime = f" in {refusal.runtime}" if refusal.runtime else ""
    return f"{format_key(refusal.format, refusal.precision)}{runtime}"


def _failed_row(name: str, result: str, reason: str) -> tuple[str, ...]:
    return (element("code", None, name), element("span", {"class": "bad"}, result), reason)


def _format_row(key: str, runtime: str, report: VerifyReport, size: int | None) -> tuple[str, ...]:
    metric = "–"
    if report.metric_before is not None and report.metric_after is not None:
        metric = f"{report.metric_before:.2%} → {report.metric_after:.2%}"
    return (
        element("code", None, key),
        element("span", {"class": "good"}, "published"),
        runtime,
        "" if size is None else f"{size / 1e6:.2f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB",
        f"{report.examples:,}",
        ", ".join(str(size) for size in report.batch_sizes),
        f"{report.max_abs_error:.2g}",
        f"{report.max_rel_error:.2g}",
        "–" if report.top1_agreement is None else f"{report.top1_agreement:.2%}",
        metric,
    )


def _random(content: ReportContent) -> Markup:
    rows = [
        (
            *(element("code", None, text) for text in (key, each.signature, each.output)),
            f"{each.examples} × {each.draws}",
            str(each.elements),
            f"{each.distance:.3f}",
            f"{each.p_value:.2g}",
        )
        for key, check in content.checks.items()
        for each in check.report.stochastic
    ]
    if not rows:
        return Markup("")
    limit = next(each.significance for check in content.checks.values() for each in check.report.stochastic)
    header = ("Format", "Signature", "Output", "Examples × draws", "Elements", "Largest distance", "p")
    return section(
        "Random outputs",
        table(header, rows, numbers=frozenset({3, 4, 5, 6})),
        lead="Compared in distribution, by two-sample Kolmogorov-Smirnov tests on many draws of the same examples; "
        f"p below {limit:g} would have been refused.",
    )


def _errors(content: ReportContent) -> Markup:
    charts = [
        element(
            "div",
            {"class": "chart"},
            element("h3", None, key),
            error_histogram(
                check.histogram,
                ERROR_EDGES,
                format=check.format,
                limit=content.max_abs_error if check.precision == "float32" else content.budget.max_abs_error,
            ),
        )
        for key, check in content.checks.items()
    ]
    return section("Errors", element("div", {"class": "charts"}, *charts), lead="Share of float output values.")


def _signatures(content: ReportContent) -> Markup:
    rows = []
    for name, signature in content.reference.source.signatures.items():
        for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
            for spec in specs:
                shape = "unknown" if spec.shape is None else str(list(spec.shape))
                code = [element("code", None, text) for text in (name, spec.name, spec.dtype, shape)]
                rows.append((code[0], kind, *code[1:]))
    return section("Signatures", table(("Signature", "", "Tensor", "Dtype", "Shape"), rows))


def _origin(content: ReportContent) -> Markup:
    source = content.source
    facts = {"Task": source.task, "Commit": source.git_commit, "Training data": source.data}
    facts |= {f"Metric {name}": f"{value:.6g}" for name, value in source.metrics.items()}
    options = dict(source.config)
    # What modelyard's own training says of a run is long: the rest is in the manifest.
    run = options.pop("run") if isinstance(options.get("run"), Mapping) else {}
    facts |= {f"Option {name}": json.dumps(value, default=str) for name, value in options.items()}
    facts |= {f"Run: {name}": json.dumps(run[name]) for name in ("made_by", "arguments", "packages") if name in run}
    pairs = [
        join((element("dt", None, name), element("dd", None, str(value)))) for name, value in facts.items() if value
    ]
    if not pairs:
        return Markup("")
    return section("Where it came from", element("dl", None, *pairs))


def describe_budget(budget: Budget) -> str:
    """A budget for people.

    Args:
        budget: The budget.
    """
    error = "" if budget.max_abs_error is None else f" and an absolute error of {budget.max_abs_error:g}"
    return f"an accuracy drop of {budget.max_accuracy_drop:.2%}{error}"
