"""Lists the licence of every package of the environment that runs this; a package without one is an error."""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, distributions

_UNSAID = ("", "UNKNOWN")
#: Packages whose metadata does not say it, read from the licence that their authors publish beside the source.
_READ_BY_HAND = {"namex": "Apache-2.0"}


def licence_of(package: Distribution) -> str:
    """What a package's metadata says about its licence, in one line; empty where it says nothing.

    Args:
        package: An installed package.
    """
    metadata = package.metadata
    expression = metadata["License-Expression"] if "License-Expression" in metadata else ""
    if expression not in _UNSAID:
        return expression
    classifiers = [
        text.rpartition(" :: ")[2] for text in metadata.get_all("Classifier") or [] if text.startswith("License ::")
    ]
    # Some paste the whole text here; its first line names it.
    first_line = (metadata["License"] if "License" in metadata else "").strip().partition("\n")[0].strip()
    if classifiers:
        return " OR ".join(classifiers)
    return first_line if first_line not in _UNSAID else _READ_BY_HAND.get(metadata["Name"], "")


def main() -> int:
    """Prints one line for each package."""
    rows = sorted((item.metadata["Name"], item.version, licence_of(item)) for item in distributions())
    for name, version, licence in rows:
        sys.stdout.write(f"{name} {version}: {licence}\n")
    silent = [name for name, _, licence in rows if not licence]
    if silent:
        sys.stderr.write(f"licences.py: no licence in the metadata of {', '.join(silent)}.\n")
    return 1 if silent else 0


if __name__ == "__main__":
    raise SystemExit(main())
