"""The process of a server: event loop and signals."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from functools import partial

from modelyard.serving.config import ServerOptions
from modelyard.serving.runtime._server import Server

_LOG = logging.getLogger("modelyard.serving")


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
        # The terminal that the server was started in is gone.
        _on_signal(server, signal.SIGHUP)
        return
    _LOG.info("received SIGHUP")
    task = asyncio.get_running_loop().create_task(server.reload())
    # The loop alone does not keep it.
    reloading.add(task)
    task.add_done_callback(reloading.discard)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
