"""gRPC's own server as a transport, over real sockets, where its own client is too polite."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import grpc
import pytest

from modelyard.clients.http import encode_fields
from modelyard.serving.transports.grpc import GrpcioServer
from tests.clients.http2_script import DATA, END, END_HEADERS, HEADERS, HELLO, PREFACE, frame, message
from tests.support.server import free_port

SECRET = "a-key-that-nobody-may-see"


def test_metadata_that_is_no_text_is_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        server, port = GrpcioServer(()), free_port()
        heard: list[str | bytes] = []

        async def answer(data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            heard.extend(value for key, value in context.invocation_metadata() or () if key == "x-api-key")
            return data

        server.add_service("a.Service", {"Method": grpc.unary_unary_rpc_method_handler(answer)})
        server.add_port(f"127.0.0.1:{port}")
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = {
            ":method": "POST", ":scheme": "http", ":path": "/a.Service/Method", ":authority": "x", "te": "trailers",
            "content-type": "application/grpc", "x-api-key": f"{SECRET}\xff",
        }  # fmt: skip
        writer.write(PREFACE + HELLO + frame(HEADERS, END_HEADERS, 1, encode_fields(head.items())))
        writer.write(frame(DATA, END, 1, message(b"")))
        await asyncio.wait_for(reader.readuntil(b"grpc-status"), 30)
        writer.close()
        await server.stop(0.0)
        # As over REST, and by the native core.
        assert heard == [f"{SECRET}\xff"]

    asyncio.run(main())
    assert SECRET not in caplog.text


@contextlib.asynccontextmanager
async def echo(arguments: Sequence[tuple[str, int | str]] = (), pause_s: float = 0.0) -> AsyncIterator[str]:
    """The address of a server that answers ``/a.Service/Method`` with what it got."""

    async def answer(data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await asyncio.sleep(pause_s)
        return data

    server, port = GrpcioServer(arguments), free_port()
    server.add_service("a.Service", {"Method": grpc.unary_unary_rpc_method_handler(answer)})
    server.add_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0.0)


def test_a_client_that_keeps_within_the_streams_is_refused_no_call() -> None:
    async def main() -> list[bytes]:
        # gRPC's client reads the limit before it sends, and keeps the other calls back.
        async with echo([("grpc.max_concurrent_streams", 8)]) as address, grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary("/a.Service/Method", bytes, bytes)
            return await asyncio.gather(*(call(b"x") for _ in range(500)))

    assert asyncio.run(main()) == [b"x"] * 500


def test_a_client_that_looks_whether_the_server_is_there_loses_no_call() -> None:
    async def main() -> bytes:
        # As often as no client does, so that the call need not be long: the third ping too many ends a connection.
        every = [("grpc.keepalive_time_ms", 1200), ("grpc.http2.max_pings_without_data", 0)]
        async with echo(pause_s=7.0) as address, grpc.aio.insecure_channel(address, options=every) as channel:
            return await channel.unary_unary("/a.Service/Method", bytes, bytes)(b"x")

    assert asyncio.run(main()) == b"x"
