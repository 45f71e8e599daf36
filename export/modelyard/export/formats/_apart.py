"""The process in which converters and foreign runtimes work: one for all formats, another one where that has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from modelyard.errors import InternalError
from modelyard.export.formats._handover import graph_specs, load_reference, plain, save_graphs
from modelyard.export.isolation import Kept, Worker
from modelyard.export.publish import ExportOptions, Progress
from modelyard.export.sources import Reference

#: What a conversion needs and takes seconds to load.
_MODULES = ("modelyard.export.formats._formats", "tf2onnx", "onnxruntime")


class Apart:
    """A process that begins to load its libraries when this is made, and gets the model when it is asked for something.

    Its methods may be called until the ``with`` block ends.
    """

    def __init__(self) -> None:
        self._worker = Worker(modules=_MODULES)
        self._maker: Kept | None = None
        self._give: Callable[[Path], Sequence[Any]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.close()

    def give(self, make: Callable[..., Any], reference: Reference, staged: Path, options: ExportOptions) -> None:
        """Says what the process will work on.

        Args:
            make: Makes what is called there, of a reference, ``staged`` and ``options``.
            reference: The model and its answers.
            staged: The version directory to be.
            options: What to make.
        """

        def give(folder: Path) -> Sequence[Any]:
            save_graphs(reference.source, folder)
            return make, plain(reference), folder, graph_specs(reference.source), staged, options

        self._give = give

    def worker(self) -> Worker:
        """The process; a new one where the last has ended."""
        if not self._worker.alive:
            self._worker.close()
            self._worker, self._maker = Worker(modules=_MODULES), None
        return self._worker

    def call(self, method: str, *arguments: Any, stage: str, progress: Progress | None = None) -> Any:
        """Calls a method of what was made over there.

        Args:
            method: Its name.
            arguments: Of the method.
            stage: What it is, for an error.
            progress: Called here.

        Raises:
            ConversionError: TensorFlow cannot save the model for it; or as the method.
            PublishError: As the method.
            VerificationError: As the method.
            WorkerEndedError: The process ended.
        """
        worker = self.worker()
        if self._maker is None:
            if self._give is None:
                raise InternalError("Nothing was given to work on. This is a bug.")
            self._maker = worker.keep(_make, *self._give(worker.folder / "graphs"), stage=stage)
        return worker.call(method, self._maker, *arguments, stage=stage, progress=progress)


def _make(
    make: Callable[..., Any],
    reference: Reference,
    graphs: Path,
    specs: Sequence[tuple[Any, ...]],
    staged: Path,
    options: ExportOptions,
) -> Any:
    """In the worker."""
    return make(load_reference(reference, graphs, specs), staged, options)
