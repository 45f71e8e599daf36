"""Loads versions until they can answer: backend, batching, warm-up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from modelyard.serving.batching import Batcher, ModelThreads, in_few_sizes, shared_graphs
from modelyard.serving.config import PER_MODEL_FILE, BatchParameters, ModelConfig, ServerOptions, read_batch_parameters
from modelyard.serving.machine import resident_bytes
from modelyard.serving.metrics import Metrics, ModelStatistics
from modelyard.serving.prediction import warm_up
from modelyard.serving.repository import file_stamp
from modelyard.serving.runtime._probe import probe_version
from modelyard.serving.servables import Computing, Servable, load_servable, settle_memory


class VersionLoader:
    def __init__(
        self,
        options: ServerOptions,
        metrics: Metrics,
        statistics: ModelStatistics,
        *,
        alone: bool = False,
    ) -> None:
        self._options = options
        #: Whether the process does nothing else than serve, and how many modules it had after the last load.
        self._alone, self._modules = alone, 0
        self._metrics = metrics
        self._statistics = statistics
        #: Versions that this server has loaded, by directory and stamp: they are not probed again.
        self._known: set[tuple[Path, tuple[int | str, ...]]] = set()

    @property
    def _experiments(self) -> bool:
        return self._options.greedy_batching and self._options.batching is None

    def load(self, config: ModelConfig, version: int, path: Path) -> Servable:
        """Loads one version, in the runtime of the flags, or else the one that the model's platform requires."""
        labels = {"model_path": str(path)}
        attempts = ":tensorflow:cc:saved_model:load_attempt_count"
        self._metrics.know(config.name)
        before, started = resident_bytes(), time.perf_counter()
        load = replace(self._options.load, runtime=self._options.load.runtime or config.runtime)
        lifecycle = self._options.lifecycle
        key = (path, file_stamp(path) if lifecycle.probe_loads else ())
        try:
            if lifecycle.probe_loads and key not in self._known:
                probe_version(
                    config.name, version, path, load, lifecycle,
                    warmup_iterations=self._options.warmup_iterations, experiment=self._experiments,
                )  # fmt: skip
            servable = load_servable(config.name, version, path, load)
            try:
                batching = self._batching(servable)
                if batching is not None:
                    servable = replace(servable, batching=batching)
                elif self._experiments:
                    servable = replace(servable, row_wise=shared_graphs(servable))
                    servable = in_few_sizes(servable, self._options.max_batch_rows)
                if self._options.warmup_iterations:
                    self._warm_up(servable)
                if lifecycle.max_batch_s:
                    servable = replace(servable, compute=Computing(servable.compute))
            except BaseException:
                servable.close()
                raise
        except Exception:
            self._metrics.count(attempts, {**labels, "status": "fail"})
            self._took(config.name, "fail", started)
            raise
        if lifecycle.probe_loads:
            self._known.add(key)
        self._metrics.count(attempts, {**labels, "status": "success"})
        self._took(config.name, "success", started)
        after = resident_bytes()
        if before is not None and after is not None:
            grown = max(0, after - before)
            place = {"model": config.name, "version": str(version)}
            self._metrics.watch(":modelyard:serving:version_memory_bytes", place, lambda: grown)
        if self._alone:
            self._modules = settle_memory(self._modules)
        unloaded = self._metrics.version_loaded(config.name, version, str(path))
        return replace(servable, closed=partial(self._closed, config.name, version, unloaded))

    def _closed(self, model: str, version: int, unloaded: Callable[[], bool]) -> None:
        if unloaded():
            self._statistics.forget(model, version)

    def _took(self, model: str, status: str, started: float) -> None:
        microseconds = (time.perf_counter() - started) * 1e6
        self._metrics.observe(":modelyard:serving:load_latency", {"model": model, "status": status}, microseconds)

    def _batching(self, servable: Servable) -> BatchParameters | None:
        parameters = self._options.batching
        if parameters is None or not self._options.per_model_batching:
            return parameters
        file = servable.path / PER_MODEL_FILE
        return read_batch_parameters(file, pad_with_zeros=parameters.pad_with_zeros) if file.is_file() else None

    def _warm_up(self, servable: Servable) -> None:
        # In batches of allowed sizes, as later; but they are not counted, and no request joins them.
        batcher = Batcher(self._metrics, ModelStatistics(), max_rows=1, measured=False)
        threads = ModelThreads(threads=1, workers=1)
        try:
            batched = batcher.batched(servable, threads)
            warm_up(batched, iterations=self._options.warmup_iterations, metrics=self._metrics)
        finally:
            threads.close()
            servable.plans.clear()
