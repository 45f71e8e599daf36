"""A whole server: manager, predictor and transports, started and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from dataclasses import replace
from functools import partial
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, TypeAlias

from modelyard.errors import ConfigurationError
from modelyard.serving.access import Access
from modelyard.serving.config import ServerOptions
from modelyard.serving.handlers.grpc import GrpcOptions, GrpcServer
from modelyard.serving.handlers.oip import OipGrpc, OipRest, OipService
from modelyard.serving.handlers.openapi import openapi_json
from modelyard.serving.handlers.rest import Page, RestApp, RestOptions, SageMakerApp, admit, config_json, models_json
from modelyard.serving.metrics import Metrics, ModelStatistics, exposition, watch_process
from modelyard.serving.prediction import PredictionLogs, Predictor
from modelyard.serving.repository import Admin, ModelManager
from modelyard.serving.rollout import Rollout
from modelyard.serving.runtime._reload import Reloads
from modelyard.serving.runtime._security import Security
from modelyard.serving.runtime._version_loader import VersionLoader
from modelyard.serving.runtime._watchdog import Watchdog
from modelyard.serving.servables import settle_memory
from modelyard.serving.telemetry import Telemetry
from modelyard.serving.transports.grpc import ARGUMENTS, GrpcioServer, GrpcLimits, limits_of
from modelyard.serving.transports.http import Application

if TYPE_CHECKING:
    from modelyard.serving.transports.asgi import UvicornServer
    from modelyard.serving.transports.native import NativeCore, NativeGrpc, NativeRest

_LOG = logging.getLogger("modelyard.serving")
#: Longest wait for threads that compute when nobody waits for them any more.
_CLOSE_S = 1.0
Transport: TypeAlias = "GrpcServer | NativeRest | UvicornServer"


class Server:
    """Serves until it is told to stop.

    Args:
        options: What to serve, and where.
        alone: Nothing else is done in this process, whose garbage collector may be told so.
    """

    def __init__(self, options: ServerOptions, *, alone: bool = False) -> None:
        self._options = options
        self._alone = alone
        self._stop = asyncio.Event()
        #: What SIGHUP has read again.
        self.reloads = Reloads()
        #: Whether a thread was still loading, or computing, when everything else had ended.
        self.unfinished = False

    @property
    def stopping(self) -> bool:
        """Whether the server was asked to stop."""
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Asks :meth:`serve` to finish the running requests and return."""
        self._stop.set()

    async def serve(self) -> None:
        """Opens the ports, serves, and closes them again in an orderly way.

        The ports are open before the models are loaded: until then answers are
        UNAVAILABLE, which a load balancer understands better than a closed port.

        Raises:
            ConfigurationError: A port cannot be listened on, or traffic rules cannot be read.
        """
        options = self._options
        metrics = Metrics()
        telemetry = Telemetry(options.telemetry, metrics, os.environ)
        statistics = ModelStatistics()
        loader = VersionLoader(options, metrics, settle=settle_memory if self._alone else None)
        manager = ModelManager(options.models, loader.load, options.watch, allow_new_labels=options.allow_new_labels)
        rollout = None if options.traffic is None else Rollout(manager, metrics, options.traffic)
        logs = PredictionLogs(options.prediction_log, metrics)
        predictor = Predictor(
            manager,
            metrics,
            workers=options.threads,
            check_methods=options.check_methods,
            batch_threads=options.batching.threads or 0 if options.batching else 0,
            max_batch_rows=options.max_batch_rows,
            max_queued_requests=options.max_queued_requests,
            max_queue_delay_s=options.max_queue_delay_s,
            statistics=statistics,
            rollout=rollout,
            logs=logs,
        )
        metrics.watch(":modelyard:serving:requests_in_flight", {}, lambda: predictor.waiting)
        metrics.watch_all(":modelyard:serving:model_versions", manager.count_states)
        watch_process(metrics)
        try:
            await self._run(manager, predictor, metrics, telemetry)
        finally:
            # What still computes after the grace period belongs to callers that are gone: it may take for ever.
            closing = threading.Thread(target=self._close, args=(predictor, logs), name="modelyard-close", daemon=True)
            closing.start()
            self.unfinished = not await asyncio.to_thread(manager.stop)
            await asyncio.to_thread(closing.join, _CLOSE_S)
            self.unfinished |= closing.is_alive()
            await asyncio.to_thread(telemetry.stop)
            _LOG.info("stopped%s", ", though a thread has not ended" if self.unfinished else "")

    def _close(self, predictor: Predictor, logs: PredictionLogs) -> None:
        predictor.close()
        if predictor.rollout is not None:
            predictor.rollout.close()
        logs.close()

    async def _run(self, manager: ModelManager, predictor: Predictor, metrics: Metrics, telemetry: Telemetry) -> None:
        options = self._options
        admin = Admin(manager)
        started: list[Transport] = []
        poller: asyncio.Task[None] | None = None
        security = Security(options)
        watching: asyncio.Task[None] | None = None
        rollout = predictor.rollout
        traffic = None if rollout is None else asyncio.create_task(rollout.watch())
        lifecycle = options.lifecycle
        watchdog = Watchdog(manager, metrics, lifecycle.max_batch_s) if lifecycle.max_batch_s else None
        self.reloads.add(partial(admin.reload_files, options.model_config_file, options.model_repository))
        try:
            telemetry.start()
            for transport in _transports(options, predictor, manager, admin, metrics, security, telemetry):
                await transport.start()
                started.append(transport)
            _LOG.info("listening: gRPC port %s, REST port %s", options.port or "off", options.rest_api_port or "off")
            watching = asyncio.create_task(security.watch())
            manager.start()
            if watchdog is not None:
                watchdog.start()
            if options.model_config_file is not None and options.model_config_poll_s > 0:
                poller = asyncio.create_task(admin.poll_file(options.model_config_file, options.model_config_poll_s))
            elif options.model_repository is not None and options.watch.poll_wait_s > 0:
                poller = asyncio.create_task(admin.poll_repository(options.model_repository, options.watch.poll_wait_s))
            await self._stop.wait()
            manager.leave()
            if lifecycle.shutdown_delay_s:
                _LOG.info("not ready any more; the ports close in %.1f s", lifecycle.shutdown_delay_s)
                await asyncio.sleep(lifecycle.shutdown_delay_s)
            _LOG.info("stopping: running requests get %.0f s", lifecycle.drain_s)
        finally:
            for task in (poller, traffic, watching):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*(transport.stop(lifecycle.drain_s) for transport in started))
            if watchdog is not None:
                watchdog.stop()


def _transports(
    options: ServerOptions,
    predictor: Predictor,
    manager: ModelManager,
    admin: Admin,
    metrics: Metrics,
    security: Security,
    telemetry: Telemetry,
) -> list[Transport]:
    transports: list[Transport] = []
    access = security.access
    core = _native_core(options, predictor, manager, metrics, access, telemetry)
    oip = OipService(manager, predictor, admin)
    if options.port or options.grpc_socket_path:
        grpc_options = GrpcOptions(
            port=options.port,
            socket_path=options.grpc_socket_path,
            tls=security.tls,
            tensor_content=options.tensor_content,
            health=options.health,
            reflection=options.reflection,
        )
        # gRPC's own server has its limits as arguments; those that are given go before.
        arguments = (*options.limits.channel_arguments(), *options.grpc_channel_arguments)
        library = GrpcioServer(arguments, recorder=telemetry.recorder)
        transport: GrpcioServer | NativeGrpc = library
        if core is not None and limits_of(options.grpc_channel_arguments) is not None:
            from modelyard.serving.transports.native import NativeGrpc

            transport = NativeGrpc(core, library)
        elif core is not None:
            _LOG.warning(
                "grpc.aio serves gRPC, which is slower: of --grpc_channel_arguments, the native core knows %s, with "
                "numbers", ", ".join(sorted(ARGUMENTS)),
            )  # fmt: skip
        more = OipGrpc(oip, metrics, access).services()
        transports.append(GrpcServer(predictor, manager, admin, access, metrics, grpc_options, transport, more=more))
    if options.rest_api_port:
        rest_options = RestOptions(
            max_body_bytes=options.max_body_bytes,
            max_json_depth=options.max_json_depth,
            timeout_s=options.rest_timeout_s,
            cors=options.cors,
            strict_json=options.strict_json,
            extensions=options.rest_extensions,
            metrics_paths=options.metrics_paths,
        )
        pages = _pages(options, manager, predictor)
        rest = RestApp(
            predictor,
            metrics,
            rest_options,
            access,
            metrics_page=partial(_metrics_page, metrics),
            v2=OipRest(oip, predictor, rest_options, access, metrics).answer,
            pages=pages,
        )
        app: Application = SageMakerApp(rest, model=options.models[0].name) if options.sagemaker else rest
        if options.console:
            from modelyard.serving.handlers.console import ConsoleApp

            app = ConsoleApp(
                app,
                manager=manager,
                predictor=predictor,
                metrics=metrics,
                statistics=predictor.statistics,
                document=pages["/openapi.json"].text,
                version=installed_version("modelyard"),
                traffic=None if predictor.rollout is None else predictor.rollout.table,
                check=lambda request: admit(access, request, "metadata").release(),
            )
        port, tls = options.rest_api_port, security.tls if options.rest_tls else None
        if core is not None:
            from modelyard.serving.transports.native import NativeRest

            transports.append(NativeRest(core, app, port=port, tls=tls))
        else:
            from modelyard.serving.transports.asgi import UvicornServer

            transports.append(
                UvicornServer(app, port=port, limits=options.limits, tls=tls, recorder=telemetry.recorder)
            )
    return transports


def _pages(options: ServerOptions, manager: ModelManager, predictor: Predictor) -> dict[str, Page]:
    """What GET answers with JSON, beside the APIs."""
    pages: dict[str, Page] = {
        "/v1/models": Page(scope="metadata", text=partial(models_json, manager)),
        "/v2/config": Page(scope="admin", text=partial(config_json, options, manager)),
        **(
            {}
            if predictor.rollout is None
            else {"/v2/traffic": Page(scope="metadata", text=predictor.rollout.rows_json)}
        ),
    }
    document = partial(
        openapi_json,
        manager,
        version=installed_version("modelyard"),
        metrics_paths=options.metrics_paths,
        pages=[*pages, "/openapi.json"],
        sagemaker=options.sagemaker,
    )
    pages["/openapi.json"] = Page(scope="metadata", text=document)
    return pages


def _native_core(
    options: ServerOptions,
    predictor: Predictor,
    manager: ModelManager,
    metrics: Metrics,
    access: Access,
    telemetry: Telemetry,
) -> NativeCore | None:
    """The core, by the server's options; None where another transport serves.

    Raises:
        ConfigurationError: It cannot be loaded.
    """
    if options.transport != "native":
        return None
    try:
        from modelyard.serving.transports.native import NativeCore, NativeOptions
    except ImportError as exc:
        raise ConfigurationError(
            f"modelyard_core is installed and cannot be loaded: {exc}. Build it with make install, or use "
            "--transport=python."
        ) from exc

    limits = limits_of(options.grpc_channel_arguments) or GrpcLimits()
    streams = "grpc.max_concurrent_streams" in dict(options.grpc_channel_arguments)
    core = NativeCore(
        NativeOptions(
            max_body_bytes=options.max_body_bytes,
            max_message_bytes=options.limits.largest(limits.max_message_bytes),
            limits=replace(options.limits, max_streams=limits.max_streams) if streams else options.limits,
            max_age_s=limits.max_age_s,
            rest_timeout_s=options.rest_timeout_s,
            wrong_rest_port=_wrong_rest_port(options),
            wrong_grpc_port=_wrong_grpc_port(options),
            max_waiting=options.max_queued_requests,
            max_delay_s=options.max_queue_delay_s,
            usual_rest=not options.cors,
            strict_json=options.strict_json,
            json_extensions=options.rest_extensions,
            max_json_depth=options.max_json_depth,
            tensor_content=options.tensor_content,
            wanted=None if telemetry.recorder is None else telemetry.recorder.wanted,
            spare_thread=options.lifecycle.max_batch_s > 0,
        ),
        access,
    )
    core.record(telemetry)
    core.answer_usual(
        manager,
        metrics,
        predictor.statistics,
        check_methods=options.check_methods,
        max_rows=options.max_batch_rows,
        rollout=predictor.rollout,
        parallel=(options.batching.threads if options.batching else 0) or options.threads,
    )
    metrics.watch(":modelyard:serving:requests_in_flight", {}, lambda: predictor.waiting + core.waiting)
    core.watch(metrics)
    return core


def _wrong_rest_port(options: ServerOptions) -> str:
    return _elsewhere("REST", "gRPC", options.port, "--port=8500")


def _wrong_grpc_port(options: ServerOptions) -> str:
    return _elsewhere("gRPC", "the REST API", options.rest_api_port, "--rest_api_port=8501")


def _elsewhere(here: str, wanted: str, port: int, flag: str) -> str:
    """What a client is told that speaks the other protocol."""
    there = f"{wanted} is on port {port}" if port else f"the server has no port for {wanted}: start it with {flag}"
    return f"This is the {here} port; {there}."


async def _metrics_page(metrics: Metrics, accept: str) -> tuple[str, bytes]:
    return exposition(metrics.snapshot(), accept)


def run(options: ServerOptions) -> None:
    """Serves in this process until SIGTERM or SIGINT.

    Args:
        options: What to serve, and where.

    Raises:
        ConfigurationError: A port cannot be listened on.
    """
    try:
        import uvloop
    except ModuleNotFoundError:
        # uvloop has no wheels for Windows; asyncio's own loop serves there.
        asyncio.run(_serve(options))
    else:
        uvloop.run(_serve(options))


async def _serve(options: ServerOptions) -> None:
    server = Server(options, alone=True)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, partial(_on_signal, server, number))
    reloading: set[asyncio.Task[None]] = set()
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, partial(_on_hangup, server, reloading, _has_terminal()))
    await server.serve()
    if server.unfinished:
        # As below: a thread in a runtime cannot be told to stop, and Python would wait for it.
        os._exit(0)


def _on_signal(server: Server, number: signal.Signals) -> None:
    if server.stopping:
        _LOG.warning("received %s again: ending at once", number.name)
        # A thread may be deep in a runtime: only the process can end it.
        os._exit(128 + number)
    _LOG.info("received %s", number.name)
    server.request_stop()


def _on_hangup(server: Server, reloading: set[asyncio.Task[None]], had_terminal: bool) -> None:
    if had_terminal and not _has_terminal():
        # Not somebody who asks for a reload: the terminal that the server was started in is gone.
        _on_signal(server, signal.SIGHUP)
        return
    _LOG.info("received SIGHUP")
    task = asyncio.get_running_loop().create_task(server.reloads.run())
    # The loop alone does not keep it.
    reloading.add(task)
    task.add_done_callback(reloading.discard)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
