"""A server: its parts, started and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from functools import partial

from modelyard.errors import ModelyardError
from modelyard.serving.config import ServerOptions
from modelyard.serving.machine import resident_bytes
from modelyard.serving.metrics import Metrics, ModelStatistics, watch_process
from modelyard.serving.prediction import PredictionLogs, Predictor
from modelyard.serving.repository import Admin, ModelManager
from modelyard.serving.rollout import Rollout
from modelyard.serving.runtime._security import Security
from modelyard.serving.runtime._transports import Parts, Transport, make_transports
from modelyard.serving.runtime._version_loader import VersionLoader
from modelyard.serving.runtime._watchdog import Watchdog
from modelyard.serving.servables import return_memory
from modelyard.serving.telemetry import Telemetry

_LOG = logging.getLogger("modelyard.serving")
#: Longest wait for threads that compute after their requests have ended, in seconds.
_CLOSE_S = 1.0
#: Longest wait for the disk that takes the logs of predictions.
_LOGS_S = 10.0


class Server:
    """Serves until it is told to stop.

    Args:
        options: What to serve, and where.
        alone: The process does nothing else; objects that live long are excluded from garbage collection.
    """

    def __init__(self, options: ServerOptions, *, alone: bool = False) -> None:
        self._options = options
        self._alone = alone
        self._stop = asyncio.Event()
        self._admin: Admin | None = None
        self._reloading = asyncio.Lock()
        #: Whether a thread was still loading, or computing, when everything else had ended.
        self.unfinished = False

    @property
    def stopping(self) -> bool:
        """Whether the server was asked to stop."""
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Asks :meth:`serve` to finish the running requests and return."""
        self._stop.set()

    async def reload(self) -> None:
        """Reads the configuration again, and polls all base paths; failures are logged, and change nothing."""
        async with self._reloading:
            try:
                options, changes = self._options, ""
                if self._admin is not None:
                    changes = await self._admin.reload_files(options.model_config_file, options.model_repository)
            except ModelyardError as exc:
                _LOG.error("reload: %s; what was in force stays", exc.message.rstrip("."))
            except Exception:
                _LOG.exception("reload: it failed unexpectedly; what was in force stays")
            else:
                _LOG.info("reload: %s", changes or "nothing changed")

    async def serve(self) -> None:
        """Opens the ports, serves until :meth:`request_stop`, and drains requests.

        The ports are open before the models are loaded: until then answers are
        UNAVAILABLE, which a load balancer understands better than a closed port.

        Raises:
            ConfigurationError: A port cannot be listened on, or traffic rules cannot be read.
        """
        options = self._options
        metrics = Metrics()
        telemetry = Telemetry(options.telemetry, metrics, os.environ)
        statistics = ModelStatistics()
        loader = VersionLoader(options, metrics, statistics, alone=self._alone)
        manager = ModelManager(
            options.models, loader.load, options.watch, allow_new_labels=options.allow_new_labels,
            # By the file, the list of models is for who may read all their metadata.
            tell_names=options.access.file is None,
        )  # fmt: skip
        rollout = None if options.traffic is None else Rollout(manager, metrics, options.traffic)
        logs = PredictionLogs(options.prediction_log, metrics)
        predictor = Predictor(
            manager,
            metrics,
            workers=options.threads,
            check_methods=options.check_methods,
            batch_threads=options.parallel_batches,
            max_batch_rows=options.max_batch_rows,
            max_queued_requests=options.max_queued_requests,
            max_queue_delay_s=options.max_queue_delay_s,
            max_bytes=options.limits.max_inflight_bytes,
            statistics=statistics,
            rollout=rollout,
            logs=logs,
        )
        metrics.watch(":modelyard:serving:requests_in_flight", {}, lambda: predictor.waiting)
        metrics.watch(":modelyard:serving:request_bytes_in_flight", {}, lambda: predictor.budget.used)
        metrics.watch_all(":modelyard:serving:model_versions", manager.count_states)
        watch_process(metrics)
        try:
            await self._run(manager, predictor, metrics, telemetry)
        finally:
            # Batches that are still computed after the grace period may never end.
            closing = threading.Thread(target=_close, args=(predictor,), name="modelyard-close", daemon=True)
            closing.start()
            # Before it is known whether they end: all that is answered has been.
            await asyncio.to_thread(logs.close, _LOGS_S)
            self.unfinished = not await asyncio.to_thread(manager.stop)
            await asyncio.to_thread(closing.join, _CLOSE_S)
            self.unfinished |= closing.is_alive()
            await asyncio.to_thread(telemetry.stop)
            _LOG.info("stopped%s", ", though a thread has not ended" if self.unfinished else "")

    async def _run(self, manager: ModelManager, predictor: Predictor, metrics: Metrics, telemetry: Telemetry) -> None:
        options = self._options
        admin = self._admin = Admin(manager)
        started: list[Transport] = []
        security = Security(options)
        security.access.refused = partial(metrics.refuse, "quota")
        tasks: list[asyncio.Task[None]] = []
        if predictor.rollout is not None:
            tasks.append(asyncio.create_task(predictor.rollout.watch()))
        parts = Parts(
            options=options, manager=manager, predictor=predictor, metrics=metrics, admin=admin, security=security,
            telemetry=telemetry,
        )  # fmt: skip
        lifecycle = options.lifecycle
        watchdog = Watchdog(manager, metrics, lifecycle.max_batch_s) if lifecycle.max_batch_s else None
        try:
            telemetry.start()
            for transport in make_transports(parts):
                await transport.start()
                started.append(transport)
            tls = "" if security.tls is None else " (TLS)"
            _LOG.info(
                "listening: gRPC port %s, REST port %s",
                f"{options.port}{tls}" if options.port else "off",
                f"{options.rest_api_port}{tls if options.rest_tls else ''}" if options.rest_api_port else "off",
            )
            security.start()
            if self._alone:
                tasks.append(asyncio.create_task(return_memory(resident_bytes)))
            manager.start()
            if watchdog is not None:
                watchdog.start()
            if options.model_config_file is not None and options.model_config_poll_s > 0:
                polling = admin.poll_file(options.model_config_file, options.model_config_poll_s)
                tasks.append(asyncio.create_task(polling))
            elif options.model_repository is not None and options.watch.poll_wait_s > 0:
                polling = admin.poll_repository(options.model_repository, options.watch.poll_wait_s)
                tasks.append(asyncio.create_task(polling))
            await self._stop.wait()
            manager.leave()
            if lifecycle.shutdown_delay_s:
                _LOG.info("not ready any more; the ports close in %.1f s", lifecycle.shutdown_delay_s)
                await asyncio.sleep(lifecycle.shutdown_delay_s)
            _LOG.info("stopping: running requests get %.0f s", lifecycle.drain_s)
        finally:
            for task in tasks:
                task.cancel()
            security.stop()
            await asyncio.gather(*(transport.stop(lifecycle.drain_s) for transport in started))
            if watchdog is not None:
                watchdog.stop()


def _close(predictor: Predictor) -> None:
    predictor.close()
    if predictor.rollout is not None:
        predictor.rollout.close()
