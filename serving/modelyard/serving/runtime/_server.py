"""A whole server: manager, predictor and transports, started and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from modelyard.errors import ConfigurationError, ModelyardError
from modelyard.serving.config import ServerOptions
from modelyard.serving.handlers.grpc import GrpcOptions, GrpcServer
from modelyard.serving.handlers.oip import OipGrpc, OipRest, OipService
from modelyard.serving.handlers.rest import RestApp, RestOptions, SageMakerApp, config_json, models_json
from modelyard.serving.metrics import Metrics, ModelStatistics, exposition, merged, watch_process
from modelyard.serving.prediction import Predictor
from modelyard.serving.repository import Admin, ModelManager
from modelyard.serving.runtime._version_loader import VersionLoader
from modelyard.serving.runtime.workers import WorkerLink
from modelyard.serving.servables import settle_memory
from modelyard.serving.transports.grpc import ARGUMENTS, GrpcioServer, GrpcLimits, limits_of
from modelyard.serving.transports.http import Application

if TYPE_CHECKING:
    from modelyard.serving.transports.asgi import UvicornServer
    from modelyard.serving.transports.native import NativeCore, NativeGrpc, NativeRest

_LOG = logging.getLogger("modelyard.serving")
Transport: TypeAlias = "GrpcServer | NativeRest | UvicornServer"
#: Longest wait of a worker for its models before it listens: where others answer, and where none does yet.
_SUCCESSOR_S, _FIRST_S = 600.0, 10.0
_STEP_S = 0.2


class Server:
    """Serves until it is told to stop.

    Args:
        options: What to serve, and where.
        channel: For one process of several, its end of the control channel.
        alone: Nothing else is done in this process, whose garbage collector may be told so.
    """

    def __init__(self, options: ServerOptions, *, channel: socket.socket | None = None, alone: bool = False) -> None:
        self._options = options
        self._channel = channel
        self._alone = alone
        self._stop = asyncio.Event()
        #: Whether a version was still being loaded when everything else had ended.
        self.loading = False

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
            ConfigurationError: A port cannot be listened on.
        """
        options = self._options
        metrics = Metrics()
        statistics = ModelStatistics()
        loader = VersionLoader(options, metrics, settle=settle_memory if self._alone else None)
        manager = ModelManager(options.models, loader.load, options.watch, allow_new_labels=options.allow_new_labels)
        predictor = Predictor(
            manager,
            metrics,
            workers=options.workers,
            check_methods=options.check_methods,
            batch_threads=options.batching.threads or 0 if options.batching else 0,
            max_batch_rows=options.max_batch_rows,
            max_queued_requests=options.max_queued_requests,
            max_queue_delay_s=options.max_queue_delay_s,
            statistics=statistics,
        )
        metrics.watch(":modelyard:serving:requests_in_flight", {}, lambda: predictor.waiting)
        metrics.watch_all(":modelyard:serving:model_versions", manager.count_states)
        watch_process(metrics)
        try:
            if self._channel is None:
                admin = Admin(manager, allow_remote=options.remote_admin)
                await self._run(manager, predictor, admin, metrics, link=None)
            else:
                admin = Admin(manager, allow_remote=options.remote_admin, everywhere=lambda change: link.change(change))
                link = WorkerLink(self._channel, apply=admin.apply, snapshot=metrics.snapshot, leave=self.request_stop)
                async with link:
                    await self._run(manager, predictor, admin, metrics, link=link)
        finally:
            # What still computes after the grace period belongs to callers that are gone.
            await asyncio.to_thread(predictor.close)
            self.loading = not await asyncio.to_thread(manager.stop)
            _LOG.info("stopped")

    async def _run(
        self, manager: ModelManager, predictor: Predictor, admin: Admin, metrics: Metrics, *, link: WorkerLink | None
    ) -> None:
        options = self._options
        started: list[Transport] = []
        poller: asyncio.Task[None] | None = None
        try:
            if link is not None:
                await self._unless_stopped(_catch_up(link, manager, admin))
                if self.stopping:
                    return
            for transport in _transports(options, predictor, manager, admin, metrics, link):
                await transport.start()
                started.append(transport)
            _LOG.info("listening: gRPC port %s, REST port %s", options.port or "off", options.rest_api_port or "off")
            if link is None:
                manager.start()
            else:
                await link.ready()
            if options.model_config_file is not None and options.model_config_poll_s > 0:
                poller = asyncio.create_task(admin.poll_file(options.model_config_file, options.model_config_poll_s))
            elif options.model_repository is not None and options.watch.poll_wait_s > 0:
                poller = asyncio.create_task(admin.poll_repository(options.model_repository, options.watch.poll_wait_s))
            await self._stop.wait()
            _LOG.info("stopping: running requests get %.0f s", options.drain_s)
        finally:
            if poller is not None:
                poller.cancel()
            await asyncio.gather(*(transport.stop(options.drain_s) for transport in started))

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Waits for work, or until the server is asked to stop."""
        working, stopped = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
        finally:
            for task in (working, stopped):
                task.cancel()
            await asyncio.gather(working, stopped, return_exceptions=True)


async def _catch_up(link: WorkerLink, manager: ModelManager, admin: Admin) -> None:
    """Loads what the workers serve.

    Beside workers that can answer, a port that cannot would cost its callers
    errors: this one listens when it can. The first ones begin together, so that
    whoever sees a model available in one of them may ask any; but not late:
    a model that takes long, or fails again and again, is no reason for a closed port.
    """
    async with admin.changing:
        changes, others = await link.begin()
        manager.start()
        end = time.monotonic() + (_SUCCESSOR_S if others else _FIRST_S)
        # In small steps: a thread that waits cannot be told to stop.
        while not await asyncio.to_thread(manager.wait_until_polled, _STEP_S) and time.monotonic() < end:
            pass
    for change in changes:
        try:
            await admin.apply(change)
        except ModelyardError as exc:
            _LOG.error("an earlier change is not possible now: %s", exc.message)
    try:
        await asyncio.wait_for(link.loaded(), _FIRST_S)
    except TimeoutError:
        _LOG.warning("another worker has not begun after %.0f s; this one listens", _FIRST_S)


def _transports(
    options: ServerOptions,
    predictor: Predictor,
    manager: ModelManager,
    admin: Admin,
    metrics: Metrics,
    link: WorkerLink | None,
) -> list[Transport]:
    transports: list[Transport] = []
    core = _native_core(options, predictor, manager, metrics, reuse_port=link is not None)
    oip = OipService(manager, predictor, admin)
    if options.port or options.grpc_socket_path:
        grpc_options = GrpcOptions(
            port=options.port,
            socket_path=options.grpc_socket_path,
            tls=options.tls,
            tensor_content=options.tensor_content,
            health=options.health,
            reflection=options.reflection,
        )
        # gRPC's own server has its limits as arguments; those that are given go before.
        arguments = (*options.limits.channel_arguments(), *options.grpc_channel_arguments)
        library = GrpcioServer(arguments, reuse_port=link is not None)
        transport: GrpcioServer | NativeGrpc = library
        if core is not None and limits_of(options.grpc_channel_arguments) is not None:
            from modelyard.serving.transports.native import NativeGrpc

            transport = NativeGrpc(core, library)
        elif core is not None:
            _LOG.warning(
                "grpc.aio serves gRPC, which is slower: of --grpc_channel_arguments, the native core knows %s, with "
                "numbers", ", ".join(sorted(ARGUMENTS)),
            )  # fmt: skip
        more = OipGrpc(oip, metrics).services()
        transports.append(GrpcServer(predictor, manager, admin, metrics, grpc_options, transport, more=more))
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
        rest = RestApp(
            predictor,
            metrics,
            rest_options,
            metrics_page=partial(_metrics_page, metrics, link),
            v2=OipRest(oip, predictor, rest_options, metrics).answer,
            pages={
                "/v1/models": partial(models_json, manager),
                "/v2/config": partial(config_json, options, manager),
            },
        )
        app: Application = SageMakerApp(rest, model=options.models[0].name) if options.sagemaker else rest
        port, tls = options.rest_api_port, options.tls if options.rest_tls else None
        if core is not None:
            from modelyard.serving.transports.native import NativeRest

            transports.append(NativeRest(core, app, port=port, tls=tls))
        else:
            from modelyard.serving.transports.asgi import UvicornServer

            transports.append(
                UvicornServer(app, port=port, limits=options.limits, tls=tls, reuse_port=link is not None)
            )
    return transports


def _native_core(
    options: ServerOptions, predictor: Predictor, manager: ModelManager, metrics: Metrics, *, reuse_port: bool
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
            reuse_port=reuse_port,
        )
    )
    core.answer_usual(
        manager,
        metrics,
        predictor.statistics,
        check_methods=options.check_methods,
        max_rows=options.max_batch_rows,
        parallel=(options.batching.threads if options.batching else 0) or options.workers,
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


async def _metrics_page(metrics: Metrics, link: WorkerLink | None, accept: str) -> tuple[str, bytes]:
    if link is None:
        return exposition(metrics.snapshot(), accept)
    return exposition(merged(await link.snapshots()), "")


def run(options: ServerOptions, *, channel: socket.socket | None = None) -> None:
    """Serves in this process until SIGTERM or SIGINT.

    Args:
        options: What to serve, and where.
        channel: For one process of several, its end of the control channel.

    Raises:
        ConfigurationError: A port cannot be listened on.
    """
    try:
        import uvloop
    except ModuleNotFoundError:
        # uvloop has no wheels for Windows; asyncio's own loop serves there.
        asyncio.run(_serve(options, channel))
    else:
        uvloop.run(_serve(options, channel))


async def _serve(options: ServerOptions, channel: socket.socket | None) -> None:
    server = Server(options, channel=channel, alone=True)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, partial(_on_signal, server, number))
    await server.serve()
    if server.loading:
        # As below: a thread that loads cannot be told to stop, and Python would wait for it.
        os._exit(0)


def _on_signal(server: Server, number: signal.Signals) -> None:
    if server.stopping:
        _LOG.warning("received %s again: ending at once", number.name)
        # A thread may be deep in a runtime: only the process can end it.
        os._exit(128 + number)
    _LOG.info("received %s", number.name)
    server.request_stop()
