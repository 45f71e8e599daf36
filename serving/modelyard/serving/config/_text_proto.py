"""Configuration files in protobuf text format."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message

from modelyard.artifact import Location, RemotePath
from modelyard.errors import ArtifactError, ConfigurationError

#: Of hundreds of thousands of models. What a model brings along is read, too.
_MAX_BYTES = 64 << 20
_M = TypeVar("_M", bound=Message)


def read_text_proto(path: Location, message: _M, *, flag: str, secret: bool = False) -> _M:
    """Reads a file into an empty message; errors name the flag, and quote nothing of a secret file."""
    try:
        if isinstance(path, RemotePath):
            content = path.read_bytes(_MAX_BYTES + 1)
        else:
            with path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ConfigurationError(f"{flag}={path} has more than {_MAX_BYTES:,} bytes; expected fewer.")
        # Editors of Windows begin a file with a byte order mark, which protobuf's own reader in C++ skips.
        return text_format.Parse(content.decode("utf-8-sig"), message)
    except ArtifactError as exc:
        raise ConfigurationError(f"{flag}={path} cannot be read: {exc.message}") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"{flag}={path} cannot be read: {exc}") from exc
    except text_format.ParseError as exc:
        where = f"line {exc.GetLine()}, column {exc.GetColumn()}" if secret else str(exc)
        raise ConfigurationError(
            f"{flag}={path} is not a {message.DESCRIPTOR.full_name} in protobuf text format: {where}"
        ) from (None if secret else exc)
