"""What the commands of this room have in common: tables of flags, and what they say."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import Any

#: Name, type, metavar (None for that of argparse) and help; flags without a type are switches.
Flag = tuple[str, Callable[[str], Any] | None, str | None, str]


def add_flags(parser: argparse._ActionsContainer, flags: Iterable[Flag], **destinations: str) -> None:
    """Adds flags with one value, or with none; ``destinations`` are those that argparse would name otherwise."""
    for name, kind, metavar, text in flags:
        # None: a switch that was not given does not overrule what a recipe says.
        options = {"action": "store_true", "default": None} if kind is None else {"type": kind, "metavar": metavar}
        usual = name.removeprefix("--").replace("-", "_")
        parser.add_argument(name, dest=destinations.get(usual, usual), help=text, **options)


def add_assignments(parser: argparse.ArgumentParser, text: str) -> None:
    """Adds ``--set``, whose values are ``arguments.assignments``."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="assignments",
        metavar="ARGUMENT=VALUE",
        help=f"{text}; may be given more than once",
    )


def note(line: str) -> None:
    """Writes a line about the progress of a command."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
