"""What transports of gRPC have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import grpc

#: Names and values; those of names that end with ``-bin`` are bytes.
Metadata = tuple[tuple[str, str | bytes], ...]
#: A method's handler; those of libraries have messages of their own.
RpcHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class AioHandler(Protocol):
    """A handler as ``grpc.aio`` calls it: grpc's stubs describe the blocking ones."""

    request_streaming: bool
    response_streaming: bool
    request_deserializer: Callable[[bytes], object] | None
    response_serializer: Callable[[object], bytes] | None
    unary_unary: Callable[[object, object], Awaitable[object]]
    unary_stream: Callable[[object, object], AsyncIterator[object] | Awaitable[None]]
    stream_stream: Callable[[object, object], AsyncIterator[object] | Awaitable[None]]


INT32_MAX = (1 << 31) - 1
#: Longer names of methods are cut in answers.
_MAX_NAME = 200


@dataclass(frozen=True, kw_only=True)
class GrpcLimits:
    """What the channel arguments that every transport understands say."""

    max_message_bytes: int = INT32_MAX
    max_streams: int = 1024
    #: Connections are ended in an orderly way after so long; 0 for never.
    max_age_s: float = 0.0


#: The gRPC channel arguments that other transports than gRPC's own understand, and the limits that they are.
ARGUMENTS = {
    "grpc.max_receive_message_length": "max_message_bytes",
    "grpc.max_concurrent_streams": "max_streams",
    "grpc.max_connection_age_ms": "max_age_s",
}


def limits_of(arguments: Sequence[tuple[str, int | str]]) -> GrpcLimits | None:
    """The limits that channel arguments mean; None where one of them means something to gRPC's own server alone."""
    values: dict[str, Any] = {}
    for name, value in arguments:
        key = ARGUMENTS.get(name)
        if key is None or not isinstance(value, int) or (value < 0 and key != "max_message_bytes"):
            return None
        # gRPC spells "any size" as -1.
        values[key] = value / 1e3 if key == "max_age_s" else INT32_MAX if value < 0 else value
    return GrpcLimits(**values)


def unknown_method(path: str, known: Iterable[str]) -> str:
    """What a call of a method that there is not is answered with."""
    name, methods = path.strip("/")[:_MAX_NAME], [other.strip("/") for other in known]
    service = name.partition("/")[0] + "/"
    siblings = sorted(method.removeprefix(service) for method in methods if method.startswith(service))
    services = sorted({method.partition("/")[0] for method in methods})
    there = f"of that service it has {', '.join(siblings)}" if siblings else f"it has {', '.join(services)}"
    return f"modelyard does not implement {name}; {there}."
