"""What goes to a worker and what comes back, as ``multiprocessing`` sends it between processes of one program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from modelyard.errors import ModelyardError


@dataclass(frozen=True)
class Kept:
    """Something that a worker keeps, for later orders.

    Attributes:
        number: It, among all that the worker keeps.
    """

    number: int


@dataclass(frozen=True, kw_only=True)
class Order:
    """A call.

    Attributes:
        function: What is called: something that can be imported, or the name of a method of ``arguments[0]``.
        arguments: What is kept stands for itself.
        keep: The worker keeps the result and answers with a :class:`Kept`.
        progress: The call takes ``progress=``, and its events are answers, too.
    """

    function: Any
    arguments: tuple[Any, ...]
    keep: bool = False
    progress: bool = False


@dataclass(frozen=True)
class Forget:
    """Something that is kept no longer.

    Attributes:
        kept: It.
    """

    kept: Kept


@dataclass(frozen=True)
class Event:
    """Progress, or a record of a log: not yet the answer.

    Attributes:
        value: An :class:`ExportEvent` or a :class:`logging.LogRecord`.
    """

    value: Any


@dataclass(frozen=True)
class Done:
    """The result of a call.

    Attributes:
        value: It.
    """

    value: Any


@dataclass(frozen=True)
class Failed:
    """The error that a call has raised.

    Attributes:
        kind: Its class, one of ours; None for any other.
        message: What it says.
        cause: The traceback of what is behind it; empty where nothing is.
    """

    kind: type[ModelyardError] | None
    message: str
    cause: str
