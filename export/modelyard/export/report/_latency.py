"""What was measured, and how the version is served because of it."""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.artifact import Latency, RuntimeChoice, format_key
from modelyard.export.report._charts import latency_bars, microseconds
from modelyard.export.report._markup import Markup, element, section, table
from modelyard.export.runtimes import main_signature

_UPSTREAM = "tensorflow"


def describe_choice(choices: Sequence[RuntimeChoice]) -> str:
    """How a version is served, and how much faster than by TensorFlow that is.

    Args:
        choices: Best first, at least one.
    """
    best = choices[0]
    threads = "1 thread" if best.threads == 1 else f"{best.threads} threads"
    text = f"Served by default with {best.runtime}, {format_key(best.format, best.precision)}, {threads}"
    upstream = next((each for each in choices if each.runtime == _UPSTREAM), None)
    if upstream is None or upstream is best or best.speedup is None:
        return f"{text}: {microseconds(best.p50_us)} for one example."
    return (
        f"{text}: {best.speedup:.1f} times as fast as TensorFlow for one example ({microseconds(best.p50_us)}; "
        f"TensorFlow with {upstream.threads} threads {microseconds(upstream.p50_us)})."
    )


def latency_section(latency: Sequence[Latency], choices: Sequence[RuntimeChoice], signatures: Sequence[str]) -> Markup:
    """A chart for each signature, and the table of everything that was measured.

    Args:
        latency: Measurements.
        choices: How the version is served, best first.
        signatures: All names.
    """
    charts = []
    for signature in signatures:
        rows = [each for each in latency if each.signature == signature and each.batch_size == 1]
        best: dict[tuple[str, str, str], Latency] = {}
        for each in sorted(rows, key=lambda each: each.p50_us):
            best.setdefault((each.format, each.precision, each.runtime), each)
        bars = [(each.format, _label(each), each.p50_us) for each in best.values()]
        chart = latency_bars(bars, title=f"Median latency of {signature}")
        charts.append(element("div", {"class": "chart"}, element("h3", None, signature), chart))
    lead = (
        "Median time of one call with one example on the exporting machine, with the number of threads that is fastest."
    )
    return section(
        "Latency",
        element("div", {"class": "charts wide"}, *charts),
        _table(latency, choices, main_signature(signatures)),
        lead=lead,
    )


def _label(each: Latency) -> str:
    precision = "" if each.precision == "float32" else f" {each.precision}"
    return f"{each.runtime}{precision}, {each.threads} thr."


def _table(latency: Sequence[Latency], choices: Sequence[RuntimeChoice], main: str) -> Markup:
    found: dict[tuple[str, str, str, str, int], dict[int, Latency]] = {}
    for each in latency:
        key = (each.signature, each.format, each.precision, each.runtime, each.threads)
        found.setdefault(key, {})[each.batch_size] = each
    sizes = sorted({each.batch_size for each in latency})
    upstream = {
        signature: min(each[1].p50_us for key, each in found.items() if key[0] == signature and key[3] == _UPSTREAM)
        for signature in {key[0] for key in found if key[3] == _UPSTREAM}
    }
    chosen = [(each.format, each.precision, each.runtime, each.threads) for each in choices]
    rows = []
    # One signature after the other, the deciding one first.
    for key, by_size in sorted(found.items(), key=lambda each: (each[0][0] != main, each[0][0])):
        signature, format, precision, runtime, threads = key
        cells = []
        for size in sizes:
            cell = by_size.get(size)
            rate = "" if cell is None or cell.examples_per_s is None else f"{cell.examples_per_s:,.0f}"
            cells += ["–" if cell is None else microseconds(cell.p50_us), rate]
        ratio = "–"
        if signature in upstream and 1 in by_size:
            times = upstream[signature] / by_size[1].p50_us
            ratio = f"{times:.2f}" if times >= 0.1 else f"{times:.1g}"
        place = key[1:]
        mark = ""
        if signature == main and place in chosen:
            mark = "default" if place == chosen[0] else f"best of {runtime}"
        code = element("code", None, format_key(format, precision))
        rows.append((element("code", None, signature), code, runtime, str(threads), *cells, ratio, mark))
    header = ["Signature", "Format", "Runtime", "Threads"]
    for size in sizes:
        header += [f"Batch {size}, p50", "examples/s"]
    header += ["× TensorFlow", ""]
    return table(header, rows, numbers=frozenset(range(3, len(header) - 1)))
