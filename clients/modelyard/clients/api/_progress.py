"""A bar on a terminal, in plain ANSI."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Self, TextIO

from modelyard.errors import ConfigurationError

#: Erases the line that the cursor is in.
_ERASE = "\r\x1b[K"
_WIDEST = 40
_EVERY_S = 0.1


class ProgressBar:
    """Rows done, failed, a second and still to come; for ``ManyOptions(progress=ProgressBar(total=...))``.

    Where the output is no terminal it says nothing.

    Args:
        total: Rows there will be, those that are skipped left out; None where it is not known: then there is no bar.
        file: Where it is drawn; None for standard error.

    Raises:
        ConfigurationError: A total that is none.
    """

    def __init__(self, total: int | None = None, *, file: TextIO | None = None) -> None:
        if total is not None and (not isinstance(total, int) or total < 0):
            raise ConfigurationError(f"Expected the number of rows, or None; received total={total!r}.")
        self._total = total
        self._file = sys.stderr if file is None else file
        self._shown = self._file.isatty()
        self._started = time.monotonic()
        self._drawn_at = 0.0
        self._counts = (0, 0)

    def __call__(self, done: int, failed: int) -> None:
        """Draws, though no more often than eyes can see.

        Args:
            done: Rows done so far.
            failed: Those of them that failed.
        """
        self._counts = (done, failed)
        now = time.monotonic()
        if self._shown and (now - self._drawn_at >= _EVERY_S or done == self._total):
            self._drawn_at = now
            self._draw()

    def write(self, line: str) -> None:
        """Writes a line above the bar, or alone where there is none.

        Args:
            line: Without its end.
        """
        self._file.write(f"{_ERASE if self._shown else ''}{line}\n")
        if self._shown:
            self._draw()

    def close(self) -> None:
        """Leaves the last state behind; a second call does nothing."""
        if self._shown:
            self._draw()
            self._file.write("\n")
            self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _draw(self) -> None:
        columns = shutil.get_terminal_size().columns
        self._file.write(_ERASE + self._text(columns - 1))
        self._file.flush()

    def _text(self, width: int) -> str:
        done, failed = self._counts
        passed = time.monotonic() - self._started
        rate = done / passed if passed > 0 else 0.0
        of = "" if self._total is None else f"/{self._total:,}"
        parts = [f"{done:,}{of} rows", f"{rate:,.0f}/s"]
        if failed:
            parts.insert(1, f"{failed:,} failed")
        if self._total is None or done >= self._total or rate == 0:
            parts.append(_clock(passed))
        else:
            parts.append(f"{_clock((self._total - done) / rate)} left")
        text = ", ".join(parts)
        if self._total:
            share = min(done / self._total, 1.0)
            room = min(_WIDEST, width - len(text) - 8)
            if room > 0:
                full = int(share * room)
                text = f"[{'#' * full}{'.' * (room - full)}] {share:4.0%} {text}"
        return text[: max(width, 0)]


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
