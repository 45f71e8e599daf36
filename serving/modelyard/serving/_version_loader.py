"""From a version directory to a servable that can take traffic."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from modelyard.serving._batch_gains import batch_gains, in_pieces
from modelyard.serving._batch_parameters import PER_MODEL_FILE, read_batch_parameters
from modelyard.serving._batching import BatchScheduler
from modelyard.serving._config import ModelConfig
from modelyard.serving._flags import ServerOptions
from modelyard.serving._loader import load_servable
from modelyard.serving._metrics import Metrics
from modelyard.serving._requests import Arrays, current_caller
from modelyard.serving._servable import Servable
from modelyard.serving._statistics import ModelStatistics
from modelyard.serving._warmup import warm_up

_LOG = logging.getLogger("modelyard.serving")


class VersionLoader:
    """Makes versions ready: backend, batching, warm-up; and counts the attempts.

    Args:
        options: How versions are loaded, batched and warmed up.
        metrics: Where attempts are counted.
        statistics: Where the batches of a batch scheduler are counted.
        settle: Called when a version is ready.
    """

    def __init__(
        self,
        options: ServerOptions,
        metrics: Metrics,
        statistics: ModelStatistics,
        *,
        settle: Callable[[], None] | None = None,
    ) -> None:
        self._options = options
        self._statistics = statistics
        self._settle = settle
        self._metrics = metrics
        self._scheduler: BatchScheduler | None = None
        if options.batching is not None:
            self._scheduler = BatchScheduler(
                threads=options.batching.threads or 1, metrics=metrics, pool_name=options.batching.pool_name
            )

    def load(self, config: ModelConfig, version: int, path: Path) -> Servable:
        """Loads one version, in the runtime of the flags, or else the one that the model's platform asks for.

        Args:
            config: The model.
            version: Its version.
            path: The version directory.

        Raises:
            ArtifactError: The version cannot be loaded.
            ConfigurationError: Its batching parameters make no sense.
            RequestError: A warm-up record cannot be replayed.
        """
        labels = {"model_path": str(path)}
        attempts = ":tensorflow:cc:saved_model:load_attempt_count"
        self._metrics.know(config.name)
        load = self._options.load
        try:
            servable = load_servable(config.name, version, path, replace(load, runtime=load.runtime or config.runtime))
            try:
                if self._options.greedy_batching:
                    servable = _greedy(servable)
                ready = threading.Event()
                self._tell_of_state(servable)
                servable = self._batched(servable, ready)
                if self._options.warmup_iterations:
                    warm_up(servable, iterations=self._options.warmup_iterations, metrics=self._metrics)
                ready.set()
            except BaseException:
                servable.close()
                raise
        except Exception:
            self._metrics.count(attempts, {**labels, "status": "fail"})
            raise
        self._metrics.count(attempts, {**labels, "status": "success"})
        if self._settle is not None:
            self._settle()
        return servable

    def _batched(self, servable: Servable, ready: threading.Event) -> Servable:
        """The version behind the batch scheduler, whose batches count when it is ready: warming up is no use of it."""
        scheduler, parameters = self._scheduler, self._options.batching
        if scheduler is None or parameters is None:
            return servable
        if self._options.per_model_batching:
            file = servable.path / PER_MODEL_FILE
            if not file.is_file():
                return servable
            parameters = read_batch_parameters(file, pad_with_zeros=parameters.pad_with_zeros)
        # Only requests to this very load of the version may go together.
        instance = object()
        run, settings = servable.compute, parameters
        # A request to these is one call, or changes what the next one answers.
        apart = {each.compute for each in servable.signatures.values() if each.stateful or not each.batched}

        def timed(graph: str, merged: Arrays, wanted: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
            started = time.perf_counter_ns()
            outputs = run(graph, merged, wanted)
            infer_ns = time.perf_counter_ns() - started
            if ready.is_set():
                rows = next((len(array) for array in merged.values() if array.ndim), 1)
                self._statistics.record_execution(servable.name, servable.version, rows=rows, infer_ns=infer_ns)
            return outputs

        def compute(graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
            wanted = tuple(outputs)
            if graph in apart:
                return timed(graph, inputs, wanted)
            return scheduler.compute(
                (instance, graph, wanted),
                inputs,
                settings,
                lambda merged: timed(graph, merged, wanted),
                caller=current_caller.get(),
            )

        return replace(servable, compute=compute, scheduled=True, max_request_rows=settings.max_batch_size)

    def _tell_of_state(self, servable: Servable) -> None:
        names = sorted(name for name, signature in servable.signatures.items() if signature.stateful)
        if names and self._options.processes > 1:
            _LOG.warning(
                "model %s version %d: %s keeps state between calls, and each of %d processes has its own; serve it "
                "with --workers=1",
                servable.name, servable.version, ", ".join(map(repr, names)), self._options.processes,
            )  # fmt: skip

    def close(self) -> None:
        """Ends the batch threads, if there are any."""
        if self._scheduler is not None:
            self._scheduler.close()


def _greedy(servable: Servable) -> Servable:
    """Has a version compute in the batches that suit it."""
    gains = batch_gains(servable)
    servable = replace(servable, row_wise=gains.shared, fixed=gains.fixed)
    if not gains.pieces:
        return servable
    for graph, rows in gains.pieces.items():
        _LOG.info(
            "model %s version %d: %r computes batches in pieces of %d", servable.name, servable.version, graph, rows
        )
    return replace(servable, compute=in_pieces(servable.compute, gains.pieces))
