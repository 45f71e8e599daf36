"""Keys of web tokens at a URL, by a real server on this machine."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from modelyard.errors import ConfigurationError, UnauthenticatedError
from modelyard.serving.access._jwt import Tokens
from modelyard.serving.access._principals import ALGORITHMS, JwtOptions


@dataclass
class Issuer:
    """Says what its keys are, and counts who asks."""

    keys: dict[str, ec.EllipticCurvePrivateKey] = field(default_factory=dict)
    asked: int = 0
    url: str = ""
    body: bytes | None = None

    def answer(self) -> bytes:
        self.asked += 1
        keys = [
            {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), "kid": key_id, "alg": "ES256"}
            for key_id, key in self.keys.items()
        ]
        return json.dumps({"keys": keys}).encode() if self.body is None else self.body

    def token(self, key_id: str) -> str:
        said = {"iss": "i", "aud": "a", "sub": "s", "exp": time.time() + 60}
        return jwt.encode(said, self.keys[key_id], algorithm="ES256", headers={"kid": key_id})


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    found = Issuer(keys={"1": ec.generate_private_key(ec.SECP256R1())})

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(found.answer())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        found.url = f"http://127.0.0.1:{server.server_address[1]}/jwks"
        yield found
        server.shutdown()
        thread.join(5)


def test_keys_are_fetched_again_when_a_token_names_another(issuer: Issuer) -> None:
    now = [1000.0]
    options = JwtOptions(jwks=issuer.url, issuer="i", audience="a", algorithms=ALGORITHMS)
    tokens = Tokens(options, clock=lambda: now[0])
    assert tokens.claims(issuer.token("1"))["sub"] == "s"
    now[0] += 20
    assert (tokens.refresh(), issuer.asked) == (False, 1)
    issuer.keys = {"2": ec.generate_private_key(ec.SECP256R1())}
    with pytest.raises(UnauthenticatedError, match="not in the server's JWKS"):
        tokens.claims(issuer.token("2"))
    assert (tokens.refresh(), issuer.asked) == (True, 2)
    assert tokens.claims(issuer.token("2"))["sub"] == "s"
    # Strangers cannot have the issuer asked as often as they like.
    for _ in range(5):
        with pytest.raises(UnauthenticatedError):
            tokens.claims(jwt.encode({}, issuer.keys["2"], algorithm="ES256", headers={"kid": "x"}))
        assert not tokens.refresh()
    assert issuer.asked == 2
    now[0] += 300
    assert (tokens.refresh(), issuer.asked) == (False, 3)
    issuer.body = b"x" * ((1 << 20) + 1)
    now[0] += 300
    with pytest.raises(ConfigurationError, match="more than 1048576 bytes"):
        tokens.refresh()
    assert tokens.claims(issuer.token("2"))["sub"] == "s"
