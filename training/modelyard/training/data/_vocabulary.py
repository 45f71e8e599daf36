"""The vocabulary of a classifier: which label has which number, fixed once and saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from modelyard.artifact import drafted
from modelyard.errors import ConfigurationError, DatasetNotFoundError

VOCABULARY_FILE = "vocabulary.txt"


def read_vocabulary(path: Path | str) -> tuple[str, ...]:
    """Reads class names, one on each line; the line's number less one is the class.

    Raises:
        DatasetNotFoundError: There is no such file.
        ConfigurationError: It is empty, no text in UTF-8, or names a class twice or not at all.
    """
    try:
        names = tuple(Path(path).read_text("utf-8").splitlines())
    except OSError as exc:
        raise DatasetNotFoundError(f"The vocabulary {path} cannot be read: {exc}.") from exc
    except UnicodeDecodeError as exc:
        raise ConfigurationError(f"The vocabulary {path} is no text in UTF-8: {exc}. Save it as UTF-8.") from exc
    check_vocabulary(names, str(path))
    return names


def write_vocabulary(path: Path | str, names: Sequence[str]) -> None:
    """Writes class names in the order of their numbers, one on each line, in one move: no reader sees half of them.

    Raises:
        ConfigurationError: The names are no vocabulary, or the file cannot be written.
    """
    check_vocabulary(names, str(path))
    try:
        with drafted(Path(path)) as draft:
            draft.write_bytes("".join(f"{name}\n" for name in names).encode())
    except (OSError, UnicodeEncodeError) as exc:
        raise ConfigurationError(
            f"The vocabulary cannot be saved to {path}: {exc}. Name another file for it with vocabulary=."
        ) from exc


def check_labels(labels: Sequence[str], names: Sequence[str], place: str, advice: str) -> None:
    """Refuses folders that the vocabulary does not name."""
    unknown = sorted(set(labels) - set(names))
    if unknown:
        raise ConfigurationError(
            f"The folders {', '.join(map(repr, unknown[:5]))} are not in the vocabulary {place}, which has "
            f"{len(names)} classes. Add them at its end{advice}."
        )


def check_vocabulary(names: Sequence[str], place: str) -> None:
    """Checks that class names can be a vocabulary."""
    twice = sorted({name for name in names if list(names).count(name) > 1}) if len(set(names)) < len(names) else []
    if (
        not names
        or twice
        or any(not isinstance(name, str) or not name.strip() or len(name.splitlines()) != 1 for name in names)
    ):
        found = f"{', '.join(map(repr, twice))} more than once" if twice else f"{list(names)[:10]}"
        raise ConfigurationError(
            f"The vocabulary {place} holds {found}; expected one class name on each line, each once."
        )
