"""Flags in files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from modelyard.errors import ConfigurationError

#: Files that name files.
_MAX_FILES = 8


def with_files(argv: Sequence[str], depth: int = 0) -> list[str]:
    """The arguments, with the lines of each ``--flagfile`` in its place: what comes later wins, as ever.

    Args:
        argv: Arguments without the program's name.
        depth: Files that lead here.

    Raises:
        ConfigurationError: A file cannot be read, has a line that is no flag, or leads to too many others.
    """
    found: list[str] = []
    rest = iter(argv)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name != "--flagfile":
            found.append(argument)
            continue
        path = Path(value if equals else next(rest, ""))
        if depth >= _MAX_FILES:
            raise ConfigurationError(f"--flagfile={path}: files of flags name each other more than {depth} deep.")
        try:
            lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigurationError(f"--flagfile={path} cannot be read: {exc}.") from exc
        flags = [line for line in lines if line and not line.startswith("#")]
        for line in flags:
            if not line.startswith("--") or "=" not in line:
                raise ConfigurationError(
                    f"--flagfile={path} has the line {line!r}; expected --flag=value, or a comment."
                )
        found += with_files(flags, depth + 1)
    return found
