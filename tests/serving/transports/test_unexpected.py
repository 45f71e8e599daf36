"""What a handler does not map is answered with one fixed sentence, by all transports, and logged once."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest

from modelyard.serving.access import Access
from modelyard.serving.config import ServerOptions
from modelyard.serving.telemetry import Recorder, Wanted
from modelyard.serving.transports.asgi import UvicornServer
from modelyard.serving.transports.grpc import GrpcioServer
from modelyard.serving.transports.http import Answer, HttpLimits, HttpRequest
from tests.support.server import free_port

SECRET = "secret of /srv/models"


async def fail(_: bytes, __: Any) -> bytes:
    raise RuntimeError(SECRET)


async def fail_later(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request
        raise RuntimeError(SECRET)


HANDLERS = {
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "FailLater": grpc.stream_stream_rpc_method_handler(fail_later),
}


def native_core() -> Any:
    if importlib.util.find_spec("modelyard_core") is None:
        pytest.skip("modelyard_core is not installed")
    from modelyard.serving.transports.native import NativeCore

    return NativeCore(ServerOptions(), Access())


def transport(kind: str) -> Any:
    if kind == "grpcio":
        return GrpcioServer((), recorder=Recorder(Wanted(share=1.0)))
    core = native_core()
    from modelyard.serving.transports.native import NativeGrpc

    return NativeGrpc(core, GrpcioServer(()))


@pytest.mark.parametrize("kind", ["grpcio", "native"])
def test_nothing_of_it_leaves_the_server(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(check(kind, caplog))


async def check(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    server, port = transport(kind), free_port()
    server.add_service("a.B", HANDLERS)
    server.add_port(f"0.0.0.0:{port}")
    await server.start()
    metadata = (("x-request-id", "mine"),)
    try:
        channel: Any
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for method in HANDLERS:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    if method == "Fail":
                        await channel.unary_unary(f"/a.B/{method}")(b"", metadata=metadata)
                    else:
                        stream = channel.stream_stream(f"/a.B/{method}")(iter([b""]), metadata=metadata)
                        [answer async for answer in stream]
                error: Any = caught.value
                assert error.code() is grpc.StatusCode.INTERNAL
                assert error.details() == "Internal error. The server's log has the details under request mine."
                assert ("x-request-id", "mine") in tuple(error.trailing_metadata() or ())
                (line,) = caplog.records
                assert line.getMessage() == f"request mine: /a.B/{method} failed unexpectedly"
                assert SECRET in str(line.exc_info)
                caplog.clear()
    finally:
        await server.stop(1.0)


class Failing:
    """An application with a bug, of which no error may reach its client."""

    limits = HttpLimits()

    async def answer(self, _: HttpRequest) -> Answer:
        raise RuntimeError(SECRET)


@pytest.mark.parametrize("kind", ["uvicorn", "native"])
def test_an_application_that_raises_is_answered_for(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(check_rest(kind, caplog))


async def check_rest(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    server: Any = UvicornServer(Failing(), port=port)
    if kind == "native":
        core = native_core()
        from modelyard.serving.transports.native import NativeRest

        server = NativeRest(core, Failing(), port=port)
    await server.start()
    try:
        async with httpx.AsyncClient(timeout=10.0) as client:
            answer = await client.get(f"http://127.0.0.1:{port}/v1/models", headers={"x-request-id": "mine"})
    finally:
        await server.stop(1.0)
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine")
    assert answer.json() == {"error": "Internal error. The server's log has the details under request mine."}
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert line.getMessage() == "request mine: GET /v1/models failed unexpectedly"
    assert SECRET in str(line.exc_info)
