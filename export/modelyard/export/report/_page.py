"""The page: which sections there are and what each says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from modelyard.artifact import Latency, Source
from modelyard.export._latency import choose_runtime
from modelyard.export._reference import Reference
from modelyard.export._verification import ERROR_EDGES, Verification
from modelyard.export.report._charts import error_histogram, latency_bars
from modelyard.export.report._examples import confusion_section, worst_section
from modelyard.export.report._markup import Markup, element, join, section, table
from modelyard.export.report._style import STYLE

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
        max_abs_error: What was allowed.
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
        _errors(content),
        _latency(content),
        _signatures(content),
        confusion_section(content.reference, content.checks),
        worst_section(content.reference, content.checks),
        _origin(content),
    )
    return f"<!doctype html>\n{element('html', {'lang': 'en'}, head, body)}\n"


def _header(title: str, content: ReportContent) -> Markup:
    worst = max(check.report.max_abs_error for check in content.checks.values())
    examples = max(check.report.examples for check in content.checks.values())
    count = len(content.checks)
    verdict = (
        f"{count} {'format computes' if count == 1 else 'formats compute'} what the trained model computes: "
        f"{examples:,} examples compared, largest absolute error {worst:.2g}, allowed {content.max_abs_error:g}."
    )
    failures = [
        element("p", {"class": "verdict failed"}, element("strong", None, f"{name} was left out. "), reason)
        for name, reason in content.skipped.items()
    ]
    data = content.reference.data.description
    return element(
        "header",
        None,
        element("h1", None, title),
        element("p", {"class": "quiet"}, f"Exported {content.created}." + (f" Compared on: {data}." if data else "")),
        element("p", {"class": "verdict"}, verdict),
        *failures,
    )


def _formats(content: ReportContent) -> Markup:
    rows = []
    for name, check in content.checks.items():
        report = check.report
        metric = "–"
        if report.metric_before is not None and report.metric_after is not None:
            metric = f"{report.metric_before:.2%} → {report.metric_after:.2%}"
        rows.append(
            (
                element("code", None, name),
                ", ".join(f"{package} {version}" for package, version in check.runtime.items()),
                f"{report.examples:,}",
                ", ".join(str(size) for size in report.batch_sizes),
                f"{report.max_abs_error:.2g}",
                f"{report.max_rel_error:.2g}",
                "–" if report.top1_agreement is None else f"{report.top1_agreement:.2%}",
                metric,
            )
        )
    header = (
        "Format", "Verified with", "Examples", "Batch sizes", "Max. abs. error", "Max. rel. error", "Top-1 agreement",
        "Accuracy before → after",
    )  # fmt: skip
    return section(
        "Formats",
        table(header, rows, numbers=frozenset({2, 4, 5, 6, 7})),
        lead="Each format was reloaded in its own runtime and compared with the live model, every example at every "
        "batch size. Integers and strings had to be equal.",
    )


def _errors(content: ReportContent) -> Markup:
    charts = [
        element(
            "div",
            {"class": "chart"},
            element("h3", None, name),
            error_histogram(check.histogram, ERROR_EDGES, format=name, limit=content.max_abs_error),
        )
        for name, check in content.checks.items()
    ]
    return section("Errors", element("div", {"class": "charts"}, *charts), lead="Share of float output values.")


def _latency(content: ReportContent) -> Markup:
    charts = []
    for signature in content.reference.source.signatures:
        rows = [(each.format, each.runtime, each.p50_us) for each in content.latency if each.signature == signature]
        bars = latency_bars(rows, title=f"Median latency of {signature}")
        charts.append(element("div", {"class": "chart"}, element("h3", None, signature), bars))
    threads = ", ".join(sorted({f"{each.runtime} {each.threads}" for each in content.latency}))
    return section(
        "Latency",
        element("div", {"class": "charts"}, *charts),
        lead=f"Median time of one call at batch size 1 on the exporting machine (threads: {threads}). "
        f"Served by default with {choose_runtime(content.latency)}.",
    )


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
    facts |= {f"Option {name}": json.dumps(value, default=str) for name, value in source.config.items()}
    pairs = [
        join((element("dt", None, name), element("dd", None, str(value)))) for name, value in facts.items() if value
    ]
    if not pairs:
        return Markup("")
    return section("Where it came from", element("dl", None, *pairs))
