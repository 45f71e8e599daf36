"""The contract of a backend: tiny and numeric."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy.typing as npt

from modelyard.artifact import Signature
from modelyard.errors import ModelyardError, RequestTooLargeError

Arrays = Mapping[str, npt.NDArray[Any]]
#: What runtimes say where the system gives them no memory. LiteRT says nothing.
_NO_MEMORY = re.compile(r"Failed to allocate|bad.alloc|OOM when allocating")


def failure(kind: type[ModelyardError], message: str) -> ModelyardError:
    """The error of a call that the runtime ended: ``kind``, unless its message says that memory ran out."""
    if _NO_MEMORY.search(message):
        return RequestTooLargeError(f"{message} The request does not fit into memory: send fewer rows at once.")
    return kind(message)


class Backend(Protocol):
    """One loaded model version in one runtime. Calls come from several threads at once."""

    #: Name of the runtime, such as ``onnxruntime``.
    name: str
    #: Whether the runtime insists on the shapes of its graphs; where it does
    #: not, neither does the server.
    checks_shapes: bool
    #: Whether the thread that calls :meth:`run` does all of the computing.
    computes_in_caller: bool
    #: Whether an accelerator computes, and not the processors that the server itself needs.
    on_device: bool
    #: Graphs that prepare themselves for each shape of their inputs, which takes long.
    few_shapes: frozenset[str]

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The graphs by name, described as the runtime sees them."""
        ...

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Computes one batch."""
        ...

    def interrupt(self, threads: Collection[int] | None = None) -> bool:
        """Ends calls that are running, those of some threads or all, with an error; False where the runtime cannot."""
        ...

    def close(self) -> None:
        """Frees the model. No call follows."""
        ...
