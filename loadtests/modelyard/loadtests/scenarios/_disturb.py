"""Disturbances of a server under load: new versions, restarts, slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from modelyard.clients import ClientOptions, RetryOptions
from modelyard.errors import LoadTestError
from modelyard.loadtests.generate import Endpoint, Mark, Served, Side
from modelyard.loadtests.options import token

_TRICKLE_S = 0.1
#: The artifact's description, where it has one.
_MANIFEST = "manifest.json"


def publisher(model_dir: Path, *, first_s: float, every_s: float, times: int) -> Side:
    """Publishes copies of the newest version as new versions."""
    # Copied now: within the run it would take the generator's time.
    staged = [copy_newest(model_dir, ahead=index + 1) for index in range(times)]

    async def publish(mark: Mark) -> None:
        await asyncio.sleep(first_s)
        for index, (path, number) in enumerate(staged):
            os.rename(path, model_dir / str(number))
            mark(f"version {number} published")
            if index + 1 < times:
                await asyncio.sleep(every_s)

    return publish


def copy_newest(model_dir: Path, *, ahead: int) -> tuple[Path, int]:
    """Copies the newest version to a place that no server looks at, ready to be renamed."""
    newest = max(int(each.name) for each in model_dir.iterdir() if each.name.isdecimal())
    number = newest + ahead
    staged = Path(tempfile.mkdtemp(prefix=".staging-", dir=model_dir))
    shutil.copytree(model_dir / str(newest), staged, dirs_exist_ok=True)
    manifest = staged / _MANIFEST
    if manifest.is_file():
        values = json.loads(manifest.read_text("utf-8"))
        # The checksum of the original.
        values.pop("sha256", None)
        manifest.write_text(json.dumps({**values, "version": number}, indent=1), "utf-8")
    staged.chmod(0o755)
    return staged, number


def restarter(servers: list[Served], *, first_s: float, pause_s: float) -> Side:
    """Restarts servers one after the other, each when the one before is ready again."""

    async def restart(mark: Mark) -> None:
        options = ClientOptions(timeout_s=1.0, retry=RetryOptions(attempts=1), token=token())
        await asyncio.sleep(first_s)
        for index, server in enumerate(servers):
            mark(f"server {index + 1} is stopped")
            await asyncio.to_thread(server.stop)
            server.launch()
            while not await asyncio.to_thread(server.ready, options):
                if server.process.poll() is not None:
                    raise LoadTestError(f"Server {index + 1} did not come up again: {server.log.read_text()[-1000:]}")
                await asyncio.sleep(0.1)
            mark(f"server {index + 1} is ready again")
            if index + 1 < len(servers):
                await asyncio.sleep(pause_s)

    return restart


def slow_clients(
    grpc: Endpoint, rest: Endpoint, body: bytes, path: str, *, count: int, tell: Callable[[int, int], None]
) -> Side:
    """Clients that send slowly, send nothing, or do not read; ``tell`` gets the slow requests sent, and answered."""

    async def disturb(mark: Mark) -> None:
        sent = answered = 0

        async def trickle() -> None:
            """Sends its request in small chunks, again and again."""
            nonlocal sent, answered
            head = f"POST {path} HTTP/1.1\r\nhost: {rest.authority}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            data = head + body
            while True:
                reader, writer = await asyncio.open_connection(rest.host, rest.port)
                try:
                    size = len(data) // 20 + 1
                    for at in range(0, len(data), size):
                        writer.write(data[at : at + size])
                        await writer.drain()
                        await asyncio.sleep(_TRICKLE_S)
                    sent += 1
                    answered += (await reader.readline()).startswith(b"HTTP/1.1 200")
                finally:
                    writer.close()

        async def silent(host: str, port: int, first: bytes) -> None:
            """Opens a connection, sends a beginning, and keeps it open."""
            while True:
                _, writer = await asyncio.open_connection(host, port)
                try:
                    writer.write(first)
                    await asyncio.sleep(3600)
                finally:
                    writer.close()

        async def not_reading() -> None:
            """Sends many requests and reads no answer."""
            request = f"POST {path} HTTP/1.1\r\nhost: {rest.authority}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            while True:
                reader, writer = await asyncio.open_connection(rest.host, rest.port, limit=1024)
                try:
                    with contextlib.suppress(ConnectionError):
                        for _ in range(200):
                            writer.write(request + body)
                            await asyncio.wait_for(writer.drain(), 5)
                    await asyncio.sleep(3600)
                except TimeoutError:
                    await asyncio.sleep(3600)
                finally:
                    writer.close()

        kinds = (
            trickle, lambda: silent(rest.host, rest.port, b"POST /v1/models/x:predict HTTP/1.1\r\nhost: "),
            trickle, lambda: silent(grpc.host, grpc.port, b"PRI * HTTP/2.0\r\n"), not_reading,
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(kinds[index % len(kinds)]()) for index in range(count)]
        mark(f"{count} slow clients connected")
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            tell(sent, answered)

    return disturb
