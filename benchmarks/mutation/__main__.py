"""Changes the code at one place at a time, counts how many changes the tests notice, and writes what came of it.

Places are drawn from all that cosmic-ray finds in an area's modules, or cargo-mutants in the native core's. Each change
is made in a copy of the checkout, where the area's tests run until one fails. A change that no test notices is listed:
either a test is missing there, or the code means the same with it. A change of Rust that does not compile is none.

    pip install cosmic-ray; cargo install cargo-mutants
    python -m benchmarks.mutation [AREA ...] [--sample N] [--seed N] [--jobs N] [--write]
"""

from __future__ import annotations

import argparse
from datetime import date

from benchmarks.mutation.areas import AREAS
from benchmarks.mutation.tries import ROOT, Found, try_some
from benchmarks.pages import read_section, write_section

PAGE = ROOT / "docs" / "reliability.md"
MARKS = ("<!-- mutation:begin -->", "<!-- mutation:end -->")


def section(found: dict[str, Found], seed: int, before: str) -> str:
    """The table, and the survivors below it; of areas that were not tried, what stood there before."""
    lines = before.splitlines()
    rows, survivors = [], []
    for name in AREAS:
        each = found.get(name)
        if each is None:
            rows += [line for line in lines if line.startswith(f"| {name} |")]
            survivors += [line for line in lines if line.startswith(f"- {name}: ")]
        else:
            tried = each.killed + len(each.survivors)
            share = f"{each.killed / tried:.0%}"
            rows.append(f"| {name} | {each.places:,} | {seed} | {tried} | {each.killed} | {share} | {date.today()} |")
            survivors += [f"- {name}: {told}" for told in each.survivors]
    return "\n".join(
        [
            "| area | places | seed | tried | noticed | | on |",
            "|---|---:|---:|---:|---:|---:|---|",
            *rows,
            *(["", "Not noticed:", "", *survivors] if survivors else []),
        ]
    )


def main() -> int:
    """Tries the areas that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)}; all, unless some are named")
    parser.add_argument("--sample", type=int, default=60, help="changes of each area (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="by which they are drawn (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (default %(default)s)")
    parser.add_argument("--write", action="store_true", help="write it into docs/reliability.md, beside other areas")
    options = parser.parse_args()
    unknown = sorted(set(options.areas) - set(AREAS))
    if unknown:
        parser.error(f"there is no area {', '.join(unknown)}; there are {', '.join(AREAS)}")
    found = {
        name: try_some(AREAS[name], sample=options.sample, seed=options.seed, jobs=options.jobs)
        for name in options.areas or AREAS
    }
    text = section(found, options.seed, read_section(PAGE, *MARKS) if options.write else "")
    print(text)
    if options.write:
        write_section(PAGE, *MARKS, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
