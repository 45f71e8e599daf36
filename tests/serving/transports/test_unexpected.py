"""What a handler does not map is answered with one fixed sentence, by both transports of gRPC, and logged once."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from modelyard.serving.access import Access
from modelyard.serving.config import TransportLimits
from modelyard.serving.telemetry import Recorder, Wanted
from modelyard.serving.transports.grpc import GrpcioServer
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


def transport(kind: str) -> Any:
    if kind == "grpcio":
        return GrpcioServer((), recorder=Recorder(Wanted(share=1.0)))
    if importlib.util.find_spec("modelyard_core") is None:
        pytest.skip("modelyard_core is not installed")
    from modelyard.serving.transports.native import NativeCore, NativeGrpc, NativeOptions

    options = NativeOptions(
        max_body_bytes=1 << 20, max_message_bytes=1 << 20, limits=TransportLimits(), max_age_s=0.0,
        rest_timeout_s=30.0, wrong_rest_port="", wrong_grpc_port="", threads=1,
    )  # fmt: skip
    return NativeGrpc(NativeCore(options, Access()), GrpcioServer(()))


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
