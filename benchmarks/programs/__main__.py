"""Exports random programs, has every runtime compute them, and compares with TensorFlow.

python -m benchmarks.programs [--count N] [--seed N] [--runtime NAME ...] [--write]
"""

from __future__ import annotations

import argparse
import collections
import logging
import sys
import time
from pathlib import Path

from benchmarks.load import machine
from benchmarks.pages import write_section
from benchmarks.programs.compare import RUNTIMES, Runtime, Wrong, expected, run, traced
from benchmarks.programs.programs import draw
from modelyard.errors import ConversionError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


def main() -> int:
    """Tells of each program that a runtime computes otherwise; 1 where there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="programs (500)")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the next has the next (0)")
    parser.add_argument("--runtime", action="append", choices=sorted(RUNTIMES), help="all, unless some are named")
    parser.add_argument("--refusals", action="store_true", help="tell of what is refused, too")
    parser.add_argument("--write", action="store_true", help=f"write the section of {PAGE.name}")
    options = parser.parse_args()
    for name in ("tf2onnx", "modelyard.export", "modelyard.serving"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    runtimes: list[Runtime] = options.runtime or list(RUNTIMES)
    right, refused, wrong = (collections.Counter[str]() for _ in range(3))
    steps, began = 0, time.monotonic()
    for seed in range(options.seed, options.seed + options.count):
        program = draw(seed)
        try:
            source, batches = traced(program), expected(program)
        except ConversionError:
            continue
        steps += len(program.lines)
        for runtime in runtimes:
            try:
                reason = run(program, source, runtime, batches)
            except Wrong as exc:
                wrong[runtime] += 1
                print(f"    {exc}", flush=True)
                continue
            (refused if reason else right)[runtime] += 1
            if reason and options.refusals:
                print(f"    {program}: {reason}", flush=True)
    lines = [
        f"{machine()}. Programs of the seeds {options.seed} to {options.seed + options.count - 1}, {steps:,} steps, in "
        f"{time.monotonic() - began:,.0f} s.", "",
        "| runtime | as by TensorFlow | refused with a reason | otherwise |", "|---|---:|---:|---:|",
        *(f"| {each} | {right[each]:,} | {refused[each]:,} | {wrong[each]:,} |" for each in runtimes),
    ]  # fmt: skip
    print("\n".join(lines))
    if options.write:
        write_section(PAGE, "<!-- programs -->", "<!-- /programs -->", "\n".join(lines))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
