"""Attacks running servers, and writes what came of it into docs/reliability.md.

python -m benchmarks.torture [FAMILY ...] [--short] [--match TEXT] [--write]
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from itertools import groupby

import benchmarks.torture
from benchmarks.torture import page
from benchmarks.torture.cases import CASES
from benchmarks.torture.runner import run_all

#: Modules of this package that have no cases.
_MACHINERY = {"__main__", "cases", "guided_reader", "honest", "operator_table", "page", "runner"}

#: What needs more than `make install` installs, and is run where it is named.
_NAMED = {"guided"}


def load_cases() -> None:
    """Imports every module that registers cases."""
    for module in pkgutil.iter_modules(benchmarks.torture.__path__):
        if module.name not in _MACHINERY:
            importlib.import_module(f"benchmarks.torture.{module.name}")


def main() -> int:
    """Runs the cases that were asked for; 1 where one of them found something."""
    load_cases()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="unless some are named: all but guided")
    parser.add_argument("--match", default="", help="only cases with this in their titles")
    parser.add_argument("--short", action="store_true", help="the version of the tests")
    parser.add_argument("--write", action="store_true", help="write the sections of docs/reliability.md")
    options = parser.parse_args()
    families = options.families or sorted({each.family for each in CASES} - _NAMED)
    if unknown := set(families) - {each.family for each in CASES}:
        parser.error(f"no family {', '.join(sorted(unknown))}; there are {sorted({each.family for each in CASES})}")
    cases = [
        each
        for each in CASES
        if each.family in families and options.match in each.title and (each.short or not options.short)
    ]
    busy = f"{os.getloadavg()[0]:.1f} other processes wanted a core when it began"
    failed = False
    for family, outcomes in groupby(run_all(cases, short=options.short), key=lambda outcome: outcome.case.family):
        done = []
        for outcome in outcomes:
            print(page.row(outcome), flush=True)
            for problem in outcome.problems:
                print(f"    {problem}", flush=True)
            done.append(outcome)
        failed |= any(outcome.problems for outcome in done)
        if options.write:
            page.write(family, done, busy)
    return failed


if __name__ == "__main__":
    sys.exit(main())
