"""A whole server: manager, predictor and transports, started and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import signal
from functools import partial
from pathlib import Path

from modelyard.serving._flags import ServerOptions
from modelyard.serving._loader import load_servable
from modelyard.serving._manager import ModelManager
from modelyard.serving._predictor import Predictor
from modelyard.serving._servable import Servable
from modelyard.serving.grpc import GrpcOptions, GrpcServer
from modelyard.serving.rest import RestApp, RestOptions, RestServer

_LOG = logging.getLogger("modelyard.serving")


class Server:
    """Serves until it is told to stop.

    Args:
        options: What to serve, and where.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._stop = asyncio.Event()

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

        def load(name: str, version: int, path: Path) -> Servable:
            return load_servable(name, version, path, options.load)

        manager = ModelManager(options.models, load, options.watch, allow_new_labels=options.allow_new_labels)
        predictor = Predictor(manager, workers=options.workers)
        transports: list[GrpcServer | RestServer] = []
        if options.port:
            address = GrpcOptions(address=f"0.0.0.0:{options.port}", tensor_content=options.tensor_content)
            transports.append(GrpcServer(predictor, address))
        if options.rest_api_port:
            limits = RestOptions(max_body_bytes=options.max_body_bytes, max_json_depth=options.max_json_depth)
            transports.append(RestServer(RestApp(predictor, limits), port=options.rest_api_port))
        started: list[GrpcServer | RestServer] = []
        try:
            for transport in transports:
                await transport.start()
                started.append(transport)
            _LOG.info("listening: gRPC port %s, REST port %s", options.port or "off", options.rest_api_port or "off")
            manager.start()
            await self._stop.wait()
            _LOG.info("stopping: running requests get %.0f s", options.drain_s)
        finally:
            await asyncio.gather(*(transport.stop(options.drain_s) for transport in started))
            # What still computes after the grace period belongs to callers that are gone.
            await asyncio.get_running_loop().run_in_executor(None, predictor.close)
            await asyncio.get_running_loop().run_in_executor(None, manager.stop)
            _LOG.info("stopped")


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
    server = Server(options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, partial(_on_signal, server, number))
    await server.serve()


def _on_signal(server: Server, number: signal.Signals) -> None:
    _LOG.info("received %s", number.name)
    server.request_stop()
