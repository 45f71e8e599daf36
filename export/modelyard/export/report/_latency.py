"""What was measured, and how the version is served because of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modelyard.artifact import Latency, RuntimeChoice, format_key
from modelyard.export.runtimes import main_signature

_UPSTREAM = "tensorflow"


def microseconds(value: float) -> str:
    """A time in microseconds for people."""
    if value < 1000:
        return f"{value:.3g} µs" if value < 100 else f"{value:.0f} µs"
    return f"{value / 1000:.3g} ms"


def describe_choice(choices: Sequence[RuntimeChoice]) -> str:
    """How a version is served (best choice first), and how much faster than by TensorFlow that is."""
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


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The median time of one format in one runtime, with the number of threads that is fastest."""

    format: str
    label: str
    share: float
    text: str


def latency_bars(latency: Sequence[Latency], signature: str) -> list[Bar]:
    """Bars for calls of a signature with one example; ``share`` is a percentage of the longest."""
    best: dict[tuple[str, str, str], Latency] = {}
    rows = [each for each in latency if each.signature == signature and each.batch_size == 1]
    for each in sorted(rows, key=lambda each: each.p50_us):
        best.setdefault((each.format, each.precision, each.runtime), each)
    longest = max((each.p50_us for each in best.values()), default=1.0)
    return [
        Bar(format=each.format, label=_label(each), share=each.p50_us / longest * 100, text=microseconds(each.p50_us))
        for each in best.values()
    ]


def _label(each: Latency) -> str:
    precision = "" if each.precision == "float32" else f" {each.precision}"
    return f"{each.runtime}{precision}, {each.threads} thr."


def latency_table(
    latency: Sequence[Latency], choices: Sequence[RuntimeChoice], signatures: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """Everything that was measured: the titles of the columns, and the rows."""
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
    main = main_signature(signatures)
    rows = []
    # One signature after the other, the deciding one first.
    for key, by_size in sorted(found.items(), key=lambda each: (each[0][0] != main, each[0][0])):
        signature, format, precision, runtime, threads = key
        cells = [signature, format_key(format, precision), runtime, str(threads)]
        for size in sizes:
            cell = by_size.get(size)
            rate = "" if cell is None or cell.examples_per_s is None else f"{cell.examples_per_s:,.0f}"
            cells += ["–" if cell is None else microseconds(cell.p50_us), rate]
        ratio = "–"
        if signature in upstream and 1 in by_size:
            times = upstream[signature] / by_size[1].p50_us
            ratio = f"{times:.2f}" if times >= 0.1 else f"{times:.1g}"
        mark = ""
        if signature == main and key[1:] in chosen:
            mark = "default" if key[1:] == chosen[0] else f"best of {runtime}"
        rows.append([*cells, ratio, mark])
    header = ["Signature", "Format", "Runtime", "Threads"]
    for size in sizes:
        header += [f"Batch {size}, p50", "examples/s"]
    return [*header, "× TensorFlow", ""], rows
