"""Writes the demo's table into README.md, and its picture to docs/images: ``python -m benchmarks.demo_table``.

It runs the pipeline for real, as ``make demo`` does, in a temporary folder.
"""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.pages import write_section
from modelyard.pipeline import RunOptions, RunReport, run_pipeline

ROOT = Path(__file__).resolve().parents[1]
START, END = "<!-- demo-table: written by benchmarks/demo_table.py -->", "<!-- demo-table: end -->"


def table(report: RunReport) -> str:
    """The report's rows as a Markdown table."""
    lines = [
        "| format | runtime | protocol | latency p50, µs | agreement with the trained model | max abs error |",
        "|---|---|---|---:|---:|---:|",
    ]
    for row in report.rows:
        error = report.export.manifest.formats[row.format].verify.max_abs_error
        lines.append(
            f"| {row.format} | {row.runtime} | {row.protocol} | {row.p50_us:,.0f} | {row.agreement:.2%} | {error:.1e} |"
        )
    accuracy = report.training.metrics["test_accuracy"]
    lines.append("")
    lines.append(
        f"{len(report.training.history)} epochs, test accuracy {accuracy:.2%}; {report.training.data}; "
        f"{platform.machine()}, Python {platform.python_version()}."
    )
    return "\n".join(lines)


def main() -> int:
    """Runs the pipeline and rewrites README.md between the two marks."""
    with tempfile.TemporaryDirectory() as folder:
        report = run_pipeline(
            RunOptions(task="fashion", repository=Path(folder, "repository"), run_dir=Path(folder, "run"))
        )
        readme = ROOT / "README.md"
        write_section(readme, START, END, table(report))
        (ROOT / "docs" / "images").mkdir(exist_ok=True)
        shutil.copyfile(report.picture, ROOT / "docs" / "images" / "demo.png")
    sys.stdout.write(f"wrote {readme}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
