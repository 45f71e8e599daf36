"""JSON web tokens: verified by the public keys of whoever issues them."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelyard.errors import ConfigurationError, MissingDependencyError, UnauthenticatedError
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


class Tokens:
    """Verifies tokens.

    Args:
        options: Which are believed.

    Raises:
        ConfigurationError: The keys cannot be had.
        MissingDependencyError: PyJWT is not installed.
    """

    def __init__(self, options: JwtOptions, clock: Callable[[], float] = time.monotonic) -> None:
        try:
            import jwt
        except ModuleNotFoundError as exc:
            raise MissingDependencyError(package="jwt", extra="access", purpose="Verifying JSON web tokens") from exc
        self._jwt = jwt
        self._clock = clock
        self.options = options
        self._wanted = threading.Event()
        self._data = b""
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._fetched_at = 0.0
        self._fetch()

    def refresh(self) -> bool:
        """Fetches the keys again where it is time.

        Returns:
            Whether they are others than before.

        Raises:
            ConfigurationError: They cannot be had; those that were known stay.
        """
        if isinstance(self.options.jwks, str):
            age = self._clock() - self._fetched_at
            if age < (_FETCH_SOON_S if self._wanted.is_set() else _FETCH_S):
                return False
        return self._fetch()

    def _fetch(self) -> bool:
        # Also where it fails: whoever has the keys is not asked in every turn.
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

    def claims(self, token: str) -> Mapping[str, Any]:
        """What a token says.

        Args:
            token: As shown.

        Raises:
            UnauthenticatedError: It is not to be believed; the message has nothing of it.
        """
        jwt = self._jwt
        try:
            key_id = jwt.get_unverified_header(token).get("kid", "")
            key = self._keys.get(key_id) if isinstance(key_id, str) else None
            if key is None:
                # The issuer may have a new one.
                self._wanted.set()
                raise UnauthenticatedError("The web token is signed by a key that is not in the server's JWKS.")
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(self.options.algorithms),
                issuer=self.options.issuer,
                audience=self.options.audience,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
            return claims
        except jwt.ExpiredSignatureError as exc:
            raise UnauthenticatedError("The web token has expired; get a new one.") from exc
        except jwt.InvalidIssuerError as exc:
            raise UnauthenticatedError("The web token is another issuer's.") from exc
        except jwt.InvalidAudienceError as exc:
            raise UnauthenticatedError("The web token is meant for another audience.") from exc
        except jwt.ImmatureSignatureError as exc:
            raise UnauthenticatedError("The web token is not valid yet; are the clocks right?") from exc
        except (jwt.PyJWTError, ValueError, TypeError) as exc:
            raise UnauthenticatedError("The web token is malformed, or its signature is wrong.") from exc


def _download(url: str) -> bytes:
    # The file that names it allows https, and http to this machine.
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
        data: bytes = answer.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"more than {_MAX_BYTES} bytes")
    return data
