"""Keys of web tokens at a URL, by a real server on this machine."""

from __future__ import annotations

import contextlib
import http.server
import json
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from modelyard.errors import ConfigurationError, UnauthenticatedError
from modelyard.serving.access import _jwt
from modelyard.serving.access._jwt import Tokens
from modelyard.serving.access._principals import ALGORITHMS, JwtOptions
from tests.contract.test_tls import issue
from tests.support.access import bearer, entry, key_of, send
from tests.support.models import publish_affine
from tests.support.server import serve


@dataclass
class Issuer:
    """Says what its keys are, and counts who asks."""

    keys: dict[str, ec.EllipticCurvePrivateKey] = field(default_factory=dict)
    asked: int = 0
    url: str = ""
    body: bytes | None = None
    #: Between two bytes of an answer.
    pause_s: float = 0.0

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
            body = found.answer()
            if not found.pause_s:
                self.wfile.write(body)
                return
            with contextlib.suppress(OSError):
                for byte in body:
                    self.wfile.write(bytes([byte]))
                    time.sleep(found.pause_s)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
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


def test_an_issuer_has_no_longer_than_the_timeout_for_all_of_its_answer(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_jwt, "_TIMEOUT_S", 0.5)
    issuer.pause_s = 0.05
    options = JwtOptions(jwks=issuer.url, issuer="i", audience="a", algorithms=ALGORITHMS)
    started = time.monotonic()
    with pytest.raises(ConfigurationError, match="not whole within 0.5 s"):
        Tokens(options)
    assert time.monotonic() - started < 3


def test_an_issuer_sends_nobody_to_plain_http(issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("location", issuer.url)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    authority = issue(tmp_path, "authority")
    pair = issue(tmp_path, "localhost", authority)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    with http.server.HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        options = JwtOptions(
            jwks=f"https://127.0.0.1:{server.server_address[1]}/jwks", issuer="i", audience="a", algorithms=ALGORITHMS
        )
        with pytest.raises(ConfigurationError, match=f"it redirects to {issuer.url}; expected https"):
            Tokens(options)
        thread.join(5)
    assert issuer.asked == 0


def test_a_key_is_taken_back_and_a_stop_ends_while_an_issuer_answers_slowly(issuer: Issuer, tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=2.0, intercept=1.0)
    file = tmp_path / "access.toml"
    tokens = f'[jwt]\njwks = "{issuer.url}"\nissuer = "i"\naudience = "a"\n'
    file.write_text(entry("shop", "predict") + tokens)
    flags = [f"--access_file={file}"]
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags, wait=False) as server:

        def status(token: str) -> int:
            return send(server, "POST /v1/models/affine:predict", headers=bearer(token))[0]

        server.wait_until(lambda: status(key_of("shop")) == 200, 60, "the key is good")
        issuer.pause_s = 3.0
        stranger = {"iss": "i", "aud": "a", "exp": time.time() + 60}
        # Anybody has the issuer asked.
        unknown = jwt.encode(stranger, issuer.keys["1"], algorithm="ES256", headers={"kid": "unknown"})
        assert status(unknown) == 401
        server.wait_until(lambda: issuer.asked == 2, 20, "the issuer is asked again")
        file.write_text(entry("other", "predict") + tokens)
        server.wait_until(lambda: status(key_of("shop")) == 401, 5, "the key is taken back")
        server.process.terminate()
        assert server.process.wait(8) == 0
