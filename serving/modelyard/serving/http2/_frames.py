"""Frames of HTTP/2 (RFC 9113), as far as a gRPC server speaks it."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA = 0x0
HEADERS = 0x1
PRIORITY = 0x2
RST_STREAM = 0x3
SETTINGS = 0x4
PUSH_PROMISE = 0x5
PING = 0x6
GOAWAY = 0x7
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

SETTINGS_HEADER_TABLE_SIZE = 0x1
SETTINGS_ENABLE_PUSH = 0x2
SETTINGS_MAX_CONCURRENT_STREAMS = 0x3
SETTINGS_INITIAL_WINDOW_SIZE = 0x4
SETTINGS_MAX_FRAME_SIZE = 0x5
SETTINGS_MAX_HEADER_LIST_SIZE = 0x6

NO_ERROR = 0x0
PROTOCOL_ERROR = 0x1
INTERNAL_ERROR = 0x2
FLOW_CONTROL_ERROR = 0x3
STREAM_CLOSED = 0x5
FRAME_SIZE_ERROR = 0x6
REFUSED_STREAM = 0x7
CANCEL = 0x8
COMPRESSION_ERROR = 0x9
ENHANCE_YOUR_CALM = 0xB

#: Every peer starts with these.
DEFAULT_WINDOW = 65_535
MAX_FRAME_BYTES = 16_384
#: What a peer may send in one DATA frame: each frame costs as much as it takes to copy some kilobytes.
MAX_DATA_BYTES = 1 << 20
MAX_WINDOW = (1 << 31) - 1
HEADER_BYTES = 9

#: Length (24 bits, as 16 and 8), kind, flags, stream.
HEADER = struct.Struct(">HBBBI")
_SETTING = struct.Struct(">HI")
_NUMBER = struct.Struct(">I")
_TWO_NUMBERS = struct.Struct(">II")


class ConnectionFailed(Exception):
    """The peer broke the protocol: the connection ends.

    Args:
        code: The error code of HTTP/2.
        reason: What is wrong, for the peer's log.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame.

    Args:
        kind: Its type.
        flags: Its flags.
        stream: The stream; 0 for the connection.
        payload: What it carries.
    """
    size = len(payload)
    return HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame.

    Args:
        values: Values by identifier.
    """
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """The pairs of a SETTINGS frame.

    Args:
        payload: Of the frame.

    Raises:
        ConnectionFailed: It has another length than pairs have.
    """
    if len(payload) % _SETTING.size:
        raise ConnectionFailed(FRAME_SIZE_ERROR, "a SETTINGS frame of odd length")
    return list(_SETTING.iter_unpack(payload))


def window_update(stream: int, size: int) -> bytes:
    """A WINDOW_UPDATE frame.

    Args:
        stream: The stream; 0 for the connection.
        size: Bytes more that may be sent.
    """
    return frame(WINDOW_UPDATE, 0, stream, _NUMBER.pack(size))


def reset(stream: int, code: int) -> bytes:
    """A RST_STREAM frame.

    Args:
        stream: The stream.
        code: Why.
    """
    return frame(RST_STREAM, 0, stream, _NUMBER.pack(code))


def goaway(last: int, code: int, reason: str = "") -> bytes:
    """A GOAWAY frame.

    Args:
        last: The last stream that is answered.
        code: Why.
        reason: In words.
    """
    return frame(GOAWAY, 0, 0, _TWO_NUMBERS.pack(last, code) + reason.encode())


def number(payload: bytes) -> int:
    """The 31-bit number that some frames consist of.

    Args:
        payload: Of the frame.

    Raises:
        ConnectionFailed: It has another length.
    """
    if len(payload) != _NUMBER.size:
        raise ConnectionFailed(FRAME_SIZE_ERROR, "a frame of the wrong length")
    value: int = _NUMBER.unpack(payload)[0]
    return value & MAX_WINDOW
