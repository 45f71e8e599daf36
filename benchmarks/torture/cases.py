"""What a case is: a function that does something bad to a server and returns what it saw."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve


class Fault(Exception):
    """A server did what it must not; the text says what."""


def expect(condition: Any, text: str) -> None:
    """Raises Fault unless the condition holds."""
    if not condition:
        raise Fault(text)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a case saw.

    Attributes:
        inputs: Requests, frames, files, kills: what was done, counted.
        text: What happened, in a few words for the page.
        figures: Numbers for the page, by name with its unit (``stall_ms``).
    """

    inputs: int
    text: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """What every case is given.

    Attributes:
        folder: An empty folder of its own.
        short: Whether this is the version that runs in the tests.
        transport: ``native`` or ``python``.
    """

    folder: Path
    short: bool
    transport: str = "native"

    def count(self, full: int, short: int) -> int:
        """How often something is done."""
        return short if self.short else full

    @contextlib.contextmanager
    def serving(self, *flags: str, **options: Any) -> Iterator[RunningServer]:
        """A server of the case's own, with the models that the shared one has."""
        with serving(self.folder, transport=self.transport, flags=flags, **options) as server:
            yield server


@dataclass(frozen=True, kw_only=True)
class Target(Scratch):
    """What a case is given that attacks a running server.

    Attributes:
        server: One with the models ``victim`` and ``other``, both y = 2 x + 1; an
            honest client calls ``other`` meanwhile.
    """

    server: RunningServer


@dataclass(frozen=True, kw_only=True)
class Case:
    """A registered case."""

    family: str
    title: str
    run: Callable[[Any], Result]
    #: It starts its own servers, and the runner checks nothing of them.
    own: bool
    #: It is part of the short version.
    short: bool
    transports: tuple[str, ...]
    #: It sends what costs nothing more than other requests as fast as it is answered: only stalls count.
    at_capacity: bool


CASES: list[Case] = []


def case(
    family: str,
    title: str,
    *,
    own: bool = False,
    short: bool = True,
    transports: Sequence[str] = ("native",),
    at_capacity: bool = False,
) -> Callable[[Callable[[Any], Result]], Callable[[Any], Result]]:
    """Registers a case.

    Args:
        family: The section of the page that shows it.
        title: What is done, in a few words.
        own: The case starts its own servers and is given a Scratch; else it is given a Target.
        short: Whether it is part of the short version.
        transports: It is run against each of these.
        at_capacity: It sends ordinary requests as fast as they are answered: only stalls count.
    """

    def register(run: Callable[[Any], Result]) -> Callable[[Any], Result]:
        CASES.append(
            Case(
                family=family, title=title, run=run, own=own, short=short, transports=tuple(transports),
                at_capacity=at_capacity,
            )
        )  # fmt: skip
        return run

    return register


def memory_mb(pid: int) -> float:
    """What a server and its children have of memory."""
    process = psutil.Process(pid)
    return sum(each.memory_info().rss for each in [process, *process.children(recursive=True)]) / 1e6


@contextlib.contextmanager
def serving(folder: Path, *, transport: str, flags: Sequence[str] = (), **options: Any) -> Iterator[RunningServer]:
    """A server with the models ``victim`` and ``other``; options are those of tests.support.server.serve."""
    models = folder / "models"
    for name in ("victim", "other"):
        if not (models / name).exists():
            publish_affine(models / name, slope=2.0, intercept=1.0)
    flags = [f"--transport={transport}", f"--model_repository={models}", *flags]
    with serve(None, model="victim", log_dir=folder, flags=flags, **options) as server:
        yield server
