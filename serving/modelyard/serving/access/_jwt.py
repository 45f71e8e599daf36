"""Verification of JSON web tokens by the public keys of their issuer."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, TYPE_CHECKING

from modelyard.errors import ConfigurationError, UnauthenticatedError
from modelyard.lazy import needs_extra
from modelyard.serving.access._principals import JwtOptions

if TYPE_CHECKING:
    import jwt

#: Keys at a URL are fetched again after so long, and sooner where a token names one that is not known.
_FETCH_S = 300.0
_FETCH_SOON_S = 10.0
_TIMEOUT_S = 10.0
_MAX_BYTES = 1 << 20
#: Clocks may differ by so much.
_LEEWAY_S = 30.0
#: What is wrong with a token, by PyJWT's exceptions.
_REASONS = {
    "ExpiredSignatureError": "has expired; get a new one.",
    "InvalidIssuerError": "is another issuer's.",
    "InvalidAudienceError": "is meant for another audience.",
    "ImmatureSignatureError": "is not valid yet; are the clocks right?",
}


class Tokens:
    def __init__(self, options: JwtOptions, clock: Callable[[], float] = time.monotonic) -> None:
        with needs_extra("access", "jwt", purpose="Verifying JSON web tokens"):
            import jwt
        self._jwt = jwt
        self._clock = clock
        self.options = options
        self._wanted = threading.Event()
        self._data = b""
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._fetched_at = 0.0
        self._fetch()

    def refresh(self) -> bool:
        """Fetches the keys again where it is time; whether they have changed."""
        if isinstance(self.options.jwks, str):
            age = self._clock() - self._fetched_at
            if age < (_FETCH_SOON_S if self._wanted.is_set() else _FETCH_S):
                return False
        return self._fetch()

    def _fetch(self) -> bool:
        # Also where it fails: the issuer is not asked at every poll.
        self._fetched_at = self._clock()
        self._wanted.clear()
        source = self.options.jwks
        try:
            data = source.read_bytes() if isinstance(source, Path) else _download(source)
            if data == self._data:
                return False
            found = self._jwt.PyJWKSet.from_json(data.decode()).keys
        except (OSError, ValueError, self._jwt.PyJWTError) as exc:
            raise ConfigurationError(f"The keys of web tokens in {source} cannot be used: {exc}.") from exc
        self._keys = {key.key_id or "": key for key in found}
        self._data = data
        return True

    def claims(self, token: str) -> Mapping[str, object]:
        """Claims of a valid token; errors quote nothing of it."""
        jwt = self._jwt
        try:
            key_id = jwt.get_unverified_header(token).get("kid", "")
            key = self._keys.get(key_id) if isinstance(key_id, str) else None
            if key is None:
                # The issuer may have a new one.
                self._wanted.set()
                raise UnauthenticatedError("The web token is signed by a key that is not in the server's JWKS.")
            claims: Mapping[str, object] = jwt.decode(
                token,
                key,
                algorithms=list(self.options.algorithms),
                issuer=self.options.issuer,
                audience=self.options.audience,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
            return claims
        except (jwt.PyJWTError, ValueError, TypeError) as exc:
            reason = _REASONS.get(type(exc).__name__, "is malformed, or its signature is wrong.")
            raise UnauthenticatedError(f"The web token {reason}") from exc


class _ToHttps(urllib.request.HTTPRedirectHandler):
    """Follows an issuer elsewhere, but not to where keys could be changed on the way."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith("https://"):
            raise ValueError(f"it redirects to {newurl}; expected https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _download(url: str) -> bytes:
    # The timeout of a socket is for each of its reads.
    end = time.monotonic() + _TIMEOUT_S
    data = bytearray()
    # The file that names it allows https, and http to this machine.
    with urllib.request.build_opener(_ToHttps).open(url, timeout=_TIMEOUT_S) as answer:
        while piece := answer.read1(_MAX_BYTES):
            data += piece
            if len(data) > _MAX_BYTES:
                raise ValueError(f"more than {_MAX_BYTES} bytes")
            if time.monotonic() > end:
                raise TimeoutError(f"the answer was not whole within {_TIMEOUT_S:g} s")
    return bytes(data)
