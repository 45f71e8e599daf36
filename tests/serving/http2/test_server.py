"""The HTTP/2 server, spoken to by gRPC's own client and, where that one is too polite, frame by frame."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import struct
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import pytest

from modelyard.serving.http2 import Http2Options, Http2Server, options_of
from modelyard.serving.http2 import _frames as h2
from modelyard.serving.http2._hpack import Decoder, encode
from tests.support.server import free_port

ECHO, SLOW, DOUBLE = "/test.Test/Echo", "/test.Test/Slow", "/test.Test/Double"
HEAD = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", ECHO.encode()), (b"te", b"trailers"),
        (b"content-type", b"application/grpc"))  # fmt: skip


class Methods:
    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def echo(self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        if data == b"abort":
            await context.abort(grpc.StatusCode.NOT_FOUND, "nö %")
        if data == b"full":
            pause = (("grpc-retry-pushback-ms", "50"),)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "come back later", pause)
        if data == b"break":
            raise ValueError("secret")
        if data == b"metadata":
            return repr([pair for pair in context.invocation_metadata() or () if pair[0].startswith("x-")]).encode()
        return data

    async def slow(self, data: bytes, _: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        self.begun.set()
        try:
            await asyncio.sleep(float(data))
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return data

    async def lazy(self, requests: AsyncIterator[bytes], _: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        count = 0
        async for _data in requests:
            await self.go_on.wait()
            count += 1
        yield b"%d" % count

    async def double(
        self, requests: AsyncIterator[bytes], _: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        async for data in requests:
            yield data * 2

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        return {
            "Echo": grpc.unary_unary_rpc_method_handler(self.echo),
            "Slow": grpc.unary_unary_rpc_method_handler(self.slow),
            "Lazy": grpc.stream_stream_rpc_method_handler(self.lazy),
            "Double": grpc.stream_stream_rpc_method_handler(self.double),
        }


def run(test: Callable[[int, Methods, Http2Server], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        server, methods, port = Http2Server(Http2Options(**options)), Methods(), free_port()
        server.add_service("test.Test", methods.handlers())
        server.add_port(f"0.0.0.0:{port}")
        await server.start()
        try:
            await asyncio.wait_for(test(port, methods, server), 30)
        finally:
            await server.stop(0.0)

    asyncio.run(main())


def test_calls_by_grpc_s_client() -> None:
    async def test(port: int, methods: Methods, _: Http2Server) -> None:
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{port}", options=[("grpc.max_receive_message_length", -1)]
        ) as (channel):
            echo = channel.unary_unary(ECHO, None, None)
            assert await echo(b"") == b""
            big = bytes(range(256)) * 40_000
            assert await echo(big) == big
            assert await asyncio.gather(*(echo(b"%d" % n) for n in range(200))) == [b"%d" % n for n in range(200)]
            metadata = (("x-text", "a"), ("x-raw-bin", b"\x00\xff"))
            assert await echo(b"metadata", metadata=metadata) == repr(list(metadata)).encode()
            assert await echo(b"z" * 1000, compression=grpc.Compression.Gzip) == b"z" * 1000
            call = channel.stream_stream(DOUBLE, None, None)(iter([b"a", b"b" * 70_000]))
            assert [answer async for answer in call] == [b"aa", b"b" * 140_000]
            for data, code, details in (
                (b"abort", grpc.StatusCode.NOT_FOUND, "nö %"),
                (b"break", grpc.StatusCode.UNKNOWN, "Unexpected error. The server's log has the details."),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await echo(data)
                assert (caught.value.code(), caught.value.details()) == (code, details)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/test.Test/Nothing", None, None)(b"")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    run(test)


def test_a_connection_rests_after_a_refusal_and_goes_on() -> None:
    async def test(port: int, methods: Methods, server: Http2Server) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            echo, slow = channel.unary_unary(ECHO, None, None), channel.unary_unary(SLOW, None, None)
            in_flight = slow(b"0.05")
            await methods.begun.wait()
            started = time.monotonic()
            for _ in range(20):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await echo(b"full")
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            # The first one is told at once; each other one was read only after the rest.
            assert time.monotonic() - started >= 19 * 0.009
            assert await in_flight == b"0.05"
            # More than fits into a read, both ways.
            big = bytes(1 << 20)
            answers = await asyncio.gather(echo(big), echo(b"full"), echo(big), return_exceptions=True)
            assert (answers[0], answers[2]) == (big, big)
            assert isinstance(answers[1], grpc.aio.AioRpcError)

    run(test)


def test_a_call_whose_caller_is_gone_is_cancelled() -> None:
    async def test(port: int, methods: Methods, _: Http2Server) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(SLOW, None, None)(b"30")
            await methods.begun.wait()
            call.cancel()
            await methods.cancelled.wait()
            methods.begun.clear()
            methods.cancelled.clear()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(SLOW, None, None)(b"30", timeout=0.2)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await methods.cancelled.wait()

    run(test)


def test_messages_are_limited_also_after_decompression() -> None:
    async def test(port: int, _: Methods, __: Http2Server) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary(ECHO, None, None)(b"z" * 5000, compression=compression)
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    run(test, max_message_bytes=1000)


def test_a_stop_answers_what_runs() -> None:
    async def test(port: int, methods: Methods, server: Http2Server) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = asyncio.ensure_future(channel.unary_unary(SLOW, None, None)(b"0.5"))
            await methods.begun.wait()
            await server.stop(10)
            assert await call == b"0.5"

    run(test)


class Peer:
    """A client that sends whatever it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.decoder = Decoder(max_bytes=1 << 14)

    @classmethod
    async def connect(cls, port: int) -> Peer:
        peer = cls(*await asyncio.open_connection("127.0.0.1", port))
        peer.send(h2.PREFACE + h2.settings({}))
        return peer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def call(self, stream: int, body: bytes, *, fields=HEAD, flags: int = h2.END_HEADERS) -> None:
        self.send(h2.frame(h2.HEADERS, flags, stream, encode(fields)))
        self.send(h2.frame(h2.DATA, h2.END_STREAM, stream, b"\0" + struct.pack(">I", len(body)) + body))

    async def frame(self, *kinds: int) -> tuple[int, int, int, bytes]:
        """The next frame of one of these kinds."""
        while True:
            high, low, kind, flags, stream = h2.HEADER.unpack(await self.reader.readexactly(h2.HEADER_BYTES))
            payload = await self.reader.readexactly(high << 8 | low)
            if kind == h2.HEADERS:
                payload = repr(dict(self.decoder.decode(payload))).encode()
            if kind in kinds:
                return kind, flags, stream, payload

    async def goodbye(self) -> int:
        """The error code that the connection ends with."""
        code = struct.unpack(">II", (await self.frame(h2.GOAWAY))[3][:8])[1]
        # What the server did not read any more makes its kernel reset the connection.
        with contextlib.suppress(ConnectionResetError):
            assert await self.reader.read() == b""
        return code


def frames(send: Callable[[Peer], None], code: int) -> None:
    """Sends something bad, and expects the connection to end with an error code."""

    async def test(port: int, _: Methods, __: Http2Server) -> None:
        peer = await Peer.connect(port)
        send(peer)
        assert await peer.goodbye() == code
        # Others have nothing of it.
        other = await Peer.connect(port)
        other.call(1, b"still here")
        assert (await other.frame(h2.DATA))[3][5:] == b"still here"
        other.writer.close()
        peer.writer.close()

    run(test)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (h2.frame(h2.DATA, 0, 1, b"x"), h2.PROTOCOL_ERROR),
        (h2.frame(h2.HEADERS, h2.END_HEADERS, 2, encode(HEAD)), h2.PROTOCOL_ERROR),
        (h2.frame(h2.HEADERS, 0, 1, b"") + h2.frame(h2.DATA, 0, 1, b""), h2.PROTOCOL_ERROR),
        (h2.frame(h2.CONTINUATION, 0, 1, b""), h2.PROTOCOL_ERROR),
        (h2.frame(h2.HEADERS, 0, 1, b"") + h2.frame(h2.CONTINUATION, 0, 1, b"x" * 16000) * 5, h2.ENHANCE_YOUR_CALM),
        (h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"), h2.COMPRESSION_ERROR),
        (h2.frame(h2.HEADERS, h2.END_HEADERS | h2.PADDED, 1, b"\x09ab"), h2.PROTOCOL_ERROR),
        (h2.frame(h2.PUSH_PROMISE, 0, 1, b""), h2.PROTOCOL_ERROR),
        (h2.frame(h2.PING, 0, 0, b"short"), h2.FRAME_SIZE_ERROR),
        (h2.frame(h2.SETTINGS, 0, 0, b"short"), h2.FRAME_SIZE_ERROR),
        (h2.settings({h2.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 31}), h2.FLOW_CONTROL_ERROR),
        (h2.settings({h2.SETTINGS_MAX_FRAME_SIZE: 1}), h2.PROTOCOL_ERROR),
        (h2.window_update(0, 0), h2.PROTOCOL_ERROR),
        (h2.window_update(0, h2.MAX_WINDOW), h2.FLOW_CONTROL_ERROR),
        (h2.HEADER.pack(1 << 12, 1, h2.DATA, 0, 1), h2.FRAME_SIZE_ERROR),
        (h2.HEADER.pack(1 << 8, 1, h2.HEADERS, 0, 1), h2.FRAME_SIZE_ERROR),
        (h2.HEADER.pack(1 << 6, 0, h2.DATA, 0, 1) + b"x", h2.PROTOCOL_ERROR),
        (h2.frame(h2.PING, 0, 0, b"12345678") * 11_000, h2.ENHANCE_YOUR_CALM),
        (b"".join(h2.frame(h2.HEADERS, h2.END_HEADERS, n, encode(HEAD)) + h2.reset(n, h2.CANCEL)
                  for n in range(1, 60_001, 2)), h2.ENHANCE_YOUR_CALM),
    ],
)  # fmt: skip
def test_peers_that_break_the_protocol(data: bytes, code: int) -> None:
    frames(lambda peer: peer.send(data), code)


def test_another_protocol() -> None:
    async def test(port: int, _: Methods, __: Http2Server) -> None:
        # A client that begins with TLS, and one of HTTP/1.1, which must not get a frame before it has shown what it is.
        for sent, start, part in (
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"", b"nothing else"),
            (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 400 ", b'{"error": "'),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            answer = await reader.read()
            assert answer.startswith(start)
            assert part in answer
            writer.close()

    run(test)


def test_frames_in_pieces_and_with_padding_and_continuations() -> None:
    async def test(port: int, _: Methods, __: Http2Server) -> None:
        peer = await Peer.connect(port)
        block = encode(HEAD)
        data = (
            h2.frame(h2.HEADERS, h2.PADDED | h2.WITH_PRIORITY, 1, b"\x02" + b"\0" * 5 + block[:10] + b"\0\0")
            + h2.frame(h2.CONTINUATION, 0, 1, block[10:20])
            + h2.frame(h2.CONTINUATION, h2.END_HEADERS, 1, block[20:])
            + h2.frame(h2.DATA, h2.PADDED, 1, b"\x03\0\0\0\0\x04ab\0\0\0")
            + h2.frame(0xFE, 0, 1, b"unknown")
            + h2.frame(h2.DATA, h2.END_STREAM, 1, b"cd")
        )
        for byte in data:
            peer.send(bytes([byte]))
            await peer.writer.drain()
        assert (await peer.frame(h2.DATA))[3] == b"\0\0\0\0\x04abcd"
        assert b"b'grpc-status': b'0'" in (await peer.frame(h2.HEADERS))[3]
        peer.writer.close()

    run(test)


@pytest.mark.parametrize("padding", [None, 0, 200])
def test_large_frames_are_taken_as_they_come(padding: int | None) -> None:
    """With padding, too, cut anywhere in it."""

    async def test(port: int, _: Methods, __: Http2Server) -> None:
        peer = await Peer.connect(port)
        rng = np.random.default_rng(0)
        for number in range(1, 21, 2):
            body = rng.bytes(30_000)
            message = b"\0" + struct.pack(">I", len(body)) + body
            payload, flags = message, h2.END_STREAM
            if padding is not None:
                payload, flags = bytes([padding]) + message + b"\xee" * padding, flags | h2.PADDED
            data = h2.frame(h2.HEADERS, h2.END_HEADERS, number, encode(HEAD)) + h2.frame(
                h2.DATA, flags, number, payload
            )
            cuts = {0, len(data), len(data) - 1, len(data) - int(rng.integers(1, 201))}
            # Around the head of the frame, too, where the padding's length stands.
            cuts |= {len(data) - len(payload) + int(rng.integers(-2, 3)), int(rng.integers(1, len(data)))}
            for start, stop in itertools.pairwise(sorted(cuts)):
                peer.send(data[start:stop])
                await peer.writer.drain()
                await asyncio.sleep(0.002)
            answer = b""
            while len(answer) < len(message):
                answer += (await peer.frame(h2.DATA))[3]
            assert answer == message
            peer.send(h2.window_update(0, len(answer)))
        peer.writer.close()

    run(test)


def test_frames_are_taken_as_they_come() -> None:
    async def test(port: int, _: Methods, __: Http2Server) -> None:
        peer = await Peer.connect(port)
        body = bytes(range(256)) * 1200
        rng = np.random.default_rng(0)
        for number in (1, 5):
            message = b"\0" + struct.pack(">I", len(body)) + body
            cuts = [0, *sorted(set(rng.integers(1, len(message), 40).tolist())), len(message)]
            pieces = [message[start:stop] for start, stop in itertools.pairwise(cuts)]
            assert max(map(len, pieces)) > h2.MAX_FRAME_BYTES
            pieces = [piece[at : at + 16_000] for piece in pieces for at in range(0, len(piece), 16_000)]
            data = (
                h2.frame(h2.HEADERS, h2.END_HEADERS, number, encode(HEAD))
                + b"".join(h2.frame(h2.DATA, 0, number, piece) for piece in pieces)
                + h2.frame(h2.DATA, h2.END_STREAM, number, b"")
                + h2.frame(h2.HEADERS, h2.END_HEADERS, number + 2, encode(HEAD))
                + h2.frame(h2.DATA, h2.END_STREAM, number + 2, b"\0\0\0\0\x02hi")
            )
            at = 0
            while at < len(data):
                step = int(rng.integers(1, 30_000))
                peer.send(data[at : at + step])
                await peer.writer.drain()
                # So that the server reads the piece alone.
                await asyncio.sleep(0.001)
                at += step
            answers: dict[int, bytes] = {}
            while sum(map(len, answers.values())) < len(message) + 7:
                _kind, _flags, stream, payload = await peer.frame(h2.DATA)
                answers[stream] = answers.get(stream, b"") + payload
                peer.send(h2.window_update(0, max(1, len(payload))) + h2.window_update(stream, max(1, len(payload))))
            assert answers == {number: message, number + 2: b"\0\0\0\0\x02hi"}
        peer.writer.close()

    run(test)


def test_a_stream_that_is_given_up_in_the_middle_of_a_frame() -> None:
    async def test(port: int, _: Methods, __: Http2Server) -> None:
        peer = await Peer.connect(port)
        # Larger than allowed: refused before the frame is whole.
        head = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, encode(HEAD))
        peer.send(head + h2.HEADER.pack(0x40, 0, h2.DATA, h2.END_STREAM, 1) + b"\0" + struct.pack(">I", 16_379))
        peer.send(b"x" * 10_000)
        assert b"b'grpc-status': b'8'" in (await peer.frame(h2.HEADERS))[3]
        peer.send(b"x" * (16_379 - 10_000))
        peer.call(3, b"next")
        assert (await peer.frame(h2.DATA))[2:] == (3, b"\0\0\0\0\x04next")
        peer.writer.close()

    run(test, max_message_bytes=9_000)


@pytest.mark.parametrize("data", [b"\0" + struct.pack(">I", 1 << 20), b"\1\0\0\0\0"])
def test_a_stream_of_bad_messages_leaves_nothing_behind(data: bytes) -> None:
    async def test(port: int, _: Methods, __: Http2Server) -> None:
        peer = await Peer.connect(port)
        fields = tuple((name, DOUBLE.encode() if name == b":path" else value) for name, value in HEAD)
        before = len(asyncio.all_tasks())
        for number in range(1, 41, 2):
            peer.send(h2.frame(h2.HEADERS, h2.END_HEADERS, number, encode(fields)) + h2.frame(h2.DATA, 0, number, data))
        for _number in range(20):
            assert b"grpc-status" in (await peer.frame(h2.HEADERS))[3]
        for _turn in range(100):
            if len(asyncio.all_tasks()) <= before:
                break
            await asyncio.sleep(0.02)
        assert len(asyncio.all_tasks()) <= before
        peer.writer.close()

    run(test, max_message_bytes=1000)


def test_a_client_that_is_faster_than_its_handler_waits_for_its_window() -> None:
    async def test(port: int, methods: Methods, _: Http2Server) -> None:
        peer = await Peer.connect(port)
        fields = tuple((name, b"/test.Test/Lazy" if name == b":path" else value) for name, value in HEAD)
        peer.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, encode(fields)))
        message = b"\0" + struct.pack(">I", 16_000) + bytes(16_000)
        # As much as the window allows: the handler has taken one message.
        for _number in range(60):
            peer.send(h2.frame(h2.DATA, 0, 1, message))
        # Of the connection's window, at its beginning.
        assert (await peer.frame(h2.WINDOW_UPDATE))[2] == 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.frame(h2.WINDOW_UPDATE, h2.HEADERS), 0.3)
        methods.go_on.set()
        assert (await peer.frame(h2.WINDOW_UPDATE))[2] == 1
        peer.send(h2.frame(h2.DATA, h2.END_STREAM, 1, message))
        assert (await peer.frame(h2.DATA))[3][5:] == b"61"
        peer.writer.close()

    run(test)


def test_large_messages_of_a_stream_take_time_by_their_size() -> None:
    """Each piece must not copy all that came before."""

    async def test(port: int, _: Methods, __: Http2Server) -> None:
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{port}", options=[("grpc.max_receive_message_length", -1)]
        ) as channel:
            seconds = []
            for size in (1 << 20, 16 << 20) * 3:
                started = time.perf_counter()
                call = channel.stream_stream(DOUBLE, None, None)(iter([bytes(size)]))
                assert [len(answer) async for answer in call] == [2 * size]
                seconds.append(time.perf_counter() - started)
            # Sixteen times as much; the square would be 256.
            assert min(seconds[1::2]) < 80 * min(seconds[::2])

    run(test)


@pytest.mark.parametrize("size", [9_999, 10_001, 20_000])
def test_a_message_of_another_size_than_it_says(size: int) -> None:
    async def test(port: int, _: Methods, __: Http2Server) -> None:
        peer = await Peer.connect(port)
        peer.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, encode(HEAD)))
        peer.send(h2.frame(h2.DATA, 0, 1, b"\0" + struct.pack(">I", 10_000) + b"x" * 5_000))
        await asyncio.sleep(0.05)
        peer.send(h2.frame(h2.DATA, 0, 1, b"x" * (size - 5_000)))
        peer.send(h2.frame(h2.DATA, h2.END_STREAM, 1, b""))
        assert b"b'grpc-status': b'13'" in (await peer.frame(h2.HEADERS))[3]
        peer.writer.close()

    run(test)


def test_windows_are_respected() -> None:
    async def test(port: int, _: Methods, __: Http2Server) -> None:
        peer = await Peer.connect(port)
        peer.send(h2.settings({h2.SETTINGS_INITIAL_WINDOW_SIZE: 10}))
        peer.call(1, b"x" * 100)
        assert len((await peer.frame(h2.DATA))[3]) == 10
        peer.send(h2.window_update(1, 5))
        assert len((await peer.frame(h2.DATA))[3]) == 5
        peer.send(h2.settings({h2.SETTINGS_INITIAL_WINDOW_SIZE: 1000}))
        assert len((await peer.frame(h2.DATA))[3]) == 90
        assert (await peer.frame(h2.HEADERS))[1] & h2.END_STREAM
        peer.writer.close()

    run(test)


@pytest.mark.parametrize(
    ("fields", "body", "status"),
    [
        (((b":method", b"GET"), *HEAD[1:]), b"", 13),
        ((*HEAD, (b"grpc-encoding", b"br")), b"", 12),
        ((*HEAD, (b"grpc-timeout", b"soon")), b"", 13),
        ((*HEAD, (b"x-bin", b"!")), b"", 13),
        ((*HEAD, (b"grpc-encoding", b"deflate")), zlib.compress(b"hi"), 0),
        ((*HEAD, (b"grpc-encoding", b"gzip")), gzip.compress(b"hi", mtime=0)[:-9], 13),
        ((*HEAD, (b"grpc-encoding", b"gzip")), b"hi", 13),
        (HEAD, b"hi", 13),
    ],
)
def test_heads_and_bodies(fields, body: bytes, status: int) -> None:
    async def test(port: int, methods: Methods, server: Http2Server) -> None:
        peer = await Peer.connect(port)
        peer.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, encode(fields)))
        peer.send(h2.frame(h2.DATA, h2.END_STREAM, 1, b"\1" + struct.pack(">I", len(body)) + body))
        while True:
            _, flags, _, payload = await peer.frame(h2.HEADERS)
            if flags & h2.END_STREAM:
                break
        assert b"b'grpc-status': b'%d'" % status in payload
        peer.writer.close()

    run(test)


@pytest.mark.parametrize("method", [b"GET", b"POST", b"HEAD"])
@pytest.mark.parametrize("content_type", [(), ((b"content-type", b"text/plain"),)], ids=["none", "text"])
def test_requests_that_are_not_grpc_s(method: bytes, content_type: tuple[tuple[bytes, bytes], ...]) -> None:
    async def test(port: int, methods: Methods, server: Http2Server) -> None:
        peer = await Peer.connect(port)
        fields = ((b":method", method), *HEAD[1:-1], *content_type)
        if method == b"POST":
            # The answer comes before the request is whole.
            peer.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, encode(fields)))
            peer.send(h2.frame(h2.DATA, 0, 1, bytes(1 << 20)))
        else:
            peer.send(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, encode(fields)))
        start = (await peer.frame(h2.HEADERS))[3]
        assert b"b':status': b'415'" in start
        assert b"b'content-type': b'application/json'" in start
        if method != b"HEAD":
            assert (await peer.frame(h2.DATA))[3] == b'{"error": "the other port"}'
        _, flags, _, end = await peer.frame(h2.HEADERS)
        assert flags & h2.END_STREAM
        assert b"b'grpc-message': b'the other port'" in end
        peer.call(3, b"goes on")
        assert (await peer.frame(h2.DATA))[3][5:] == b"goes on"
        peer.writer.close()

    run(test, wrong_port="the other port")


def test_more_streams_than_allowed_are_refused_and_cost_nothing() -> None:
    async def test(port: int, methods: Methods, server: Http2Server) -> None:
        peer = await Peer.connect(port)
        slow = tuple((name, SLOW.encode() if name == b":path" else value) for name, value in HEAD)
        for stream in (1, 3, 5):
            peer.call(stream, b"0.3", fields=slow)
        _, _, stream, payload = await peer.frame(h2.RST_STREAM)
        assert (stream, h2.number(payload)) == (5, h2.REFUSED_STREAM)
        assert {(await peer.frame(h2.DATA))[2] for _ in range(2)} == {1, 3}
        peer.writer.close()

    run(test, max_streams=2)


def test_old_connections_end_in_an_orderly_way() -> None:
    async def test(port: int, _: Methods, __: Http2Server) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            echo = channel.unary_unary(ECHO, None, None)
            for number in range(60):
                assert await echo(b"%d" % number) == b"%d" % number
                await asyncio.sleep(0.01)

    run(test, max_age_s=0.1)


def test_channel_arguments() -> None:
    assert options_of([]) == Http2Options()
    arguments = [("grpc.max_receive_message_length", -1), ("grpc.max_connection_age_ms", 2000)]
    assert options_of(arguments) == Http2Options(max_age_s=2.0)
    assert options_of([("grpc.keepalive_time_ms", 1)]) is None
    assert options_of([("grpc.max_concurrent_streams", "x")]) is None
