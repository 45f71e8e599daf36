"""grpcs and https trust the system's roots, and nobody else."""

from __future__ import annotations

import contextlib
import http.server
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, Literal

import grpc
import pytest

from modelyard.clients import ClientOptions, RetryOptions, TlsOptions, connect
from modelyard.errors import ConfigurationError, ProtocolError, UnavailableError
from modelyard.wire import MODEL_SERVICE, serving_pb2
from tests.clients.conftest import connected, peer
from tests.clients.http2_script import GOAWAY, HELLO, frame
from tests.support.certificates import self_signed

STATUS = b'{"model_version_status": [{"version": "3", "state": "AVAILABLE"}]}'


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("tls"))


@contextlib.contextmanager
def _mutual(scheme: str, key: Path, cert: Path) -> Iterator[int]:
    if scheme == "grpcs":
        yield from _grpc(key, cert, ca=cert.read_bytes())
    else:
        yield from _https(key, cert, ca=cert)


@pytest.fixture
def grpc_port(certificate: tuple[Path, Path]) -> Iterator[int]:
    yield from _grpc(*certificate)


def _grpc(key: Path, cert: Path, ca: bytes | None = None) -> Iterator[int]:
    def status(data: bytes, context: Any) -> bytes:
        response = serving_pb2.GetModelStatusResponse()
        response.model_version_status.add(version=3, state=30)
        return response.SerializeToString()

    method = MODEL_SERVICE["GetModelStatus"]
    handlers = {method.name: grpc.unary_unary_rpc_method_handler(status)}
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(method.service, handlers)])
    pair = (key.read_bytes(), cert.read_bytes())
    credentials = grpc.ssl_server_credentials([pair], ca, ca is not None)
    # All of 127.0.0.0/8, so that there is an address that the certificate does not name.
    port = server.add_secure_port("0.0.0.0:0", credentials)
    server.start()
    yield port
    server.stop(None).wait(5)


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(STATUS)))
        self.end_headers()
        self.wfile.write(STATUS)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def https_port(certificate: tuple[Path, Path]) -> Iterator[int]:
    yield from _https(*certificate)


def _https(key: Path, cert: Path, ca: Path | None = None) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if ca is not None:
        context.load_verify_locations(ca)
        context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(cert, key)
    with http.server.ThreadingHTTPServer(("0.0.0.0", 0), _Handler) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(5)


@pytest.fixture(params=["grpcs", "https"])
def url(request: pytest.FixtureRequest) -> str:
    port = request.getfixturevalue("grpc_port" if request.param == "grpcs" else "https_port")
    return f"{request.param}://localhost:{port}"


def test_a_root_of_the_system_is_trusted(
    url: str, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What OpenSSL reads in place of the system's own file of roots.
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[1]))
    with connect(url) as client:
        assert client.status("m", timeout_s=20).available == (3,)


def test_any_other_root_is_not(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with connect(url) as client, pytest.raises(UnavailableError, match="(?i)certificate|handshake"):
        client.status("m", timeout_s=20)


def test_a_named_root_is_trusted_and_a_name_can_be_given(url: str, certificate: tuple[Path, Path]) -> None:
    with connect(url, ClientOptions(tls=TlsOptions(ca=certificate[1]))) as client:
        assert client.status("m", timeout_s=20).available == (3,)
    # The certificate has no name but these two: another host passes for one of them, and for no other.
    address = url.replace("localhost", "127.0.0.2")
    with connect(address, ClientOptions(tls=TlsOptions(ca=certificate[1], server_name="localhost"))) as client:
        assert client.status("m", timeout_s=20).available == (3,)
    with connect(address, ClientOptions(tls=TlsOptions(ca=certificate[1]))) as client:
        with pytest.raises(UnavailableError):
            client.status("m", timeout_s=20)


@pytest.mark.parametrize("transport", ["own", "library"])
def test_files_may_be_named_by_text(
    url: str, certificate: tuple[Path, Path], transport: Literal["own", "library"]
) -> None:
    tls = TlsOptions(ca=str(certificate[1]))  # type: ignore[arg-type]
    with connect(url, ClientOptions(tls=tls, transport=transport)) as client:
        assert client.status("m", timeout_s=20).available == (3,)


def test_a_name_that_is_not_in_the_certificate_is_told_apart_from_a_server_that_is_down(
    url: str, certificate: tuple[Path, Path]
) -> None:
    options = ClientOptions(tls=TlsOptions(ca=certificate[1]))
    with connect(url.replace("localhost", "127.0.0.2"), options) as client:
        with pytest.raises(UnavailableError, match=r"server_name=\.\.\.") as caught:
            client.status("m", timeout_s=20)
    assert "running" not in caught.value.message


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_url_without_tls_at_a_port_with_tls_is_told_what_to_begin_with(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                # The alert "decode error" of the native core and of OpenSSL.
                connection.sendall(b"\x15\x03\x03\x00\x02\x02\x32")

        thread = threading.Thread(target=answer)
        thread.start()
        with connect(f"{scheme}://127.0.0.1:{server.getsockname()[1]}") as client:
            with pytest.raises(ProtocolError, match=f"answered in TLS: begin the URL with {scheme}s://"):
                client.status("m", timeout_s=20)
        thread.join(5)


@pytest.mark.parametrize("scheme", ["grpcs", "https"])
def test_a_url_with_tls_at_a_port_without_tls_is_told_so(scheme: str) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with connect(f"{scheme}://127.0.0.1:{server.server_address[1]}") as client:
            with pytest.raises(UnavailableError, match="Does this port speak TLS"):
                client.status("m", timeout_s=20)
        server.shutdown()
        thread.join(5)


@pytest.mark.parametrize("scheme", ["grpcs", "https"])
def test_mutual_tls(scheme: str, certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    tls = TlsOptions(ca=cert, certificate=cert, key=key)
    with _mutual(scheme, key, cert) as port:
        with connect(f"{scheme}://localhost:{port}", ClientOptions(tls=tls)) as client:
            assert client.status("m", timeout_s=20).available == (3,)
        with connect(f"{scheme}://localhost:{port}", ClientOptions(tls=TlsOptions(ca=cert))) as client:
            with pytest.raises(UnavailableError):
                client.status("m", timeout_s=20)


@pytest.mark.parametrize("scheme", ["grpcs", "https"])
def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(
    scheme: str, certificate: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key, cert = certificate
    locked = tmp_path / "locked.pem"
    subprocess.run(["openssl", "pkcs8", "-topk8", "-in", key, "-passout", "pass:x", "-out", locked], check=True)
    options = ClientOptions(tls=TlsOptions(ca=cert, certificate=cert, key=locked))
    with pytest.raises(ConfigurationError, match=r"locked\.pem cannot be used: .* without a password"):
        with connect(f"{scheme}://localhost:1", options) as client:
            client.status("m", timeout_s=20)
    assert "pass phrase" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("kind", ["", "async"])
def test_a_goodbye_that_comes_with_the_handshake_ends_the_call(certificate: tuple[Path, Path], kind: str) -> None:
    key, cert = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.set_alpn_protocols(["h2"])
    # The last word of this handshake is the server's: what it says next is in the same packet.
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def serve(connection: socket.socket) -> None:
        received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(received, sent, server_side=True)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(sent.read())
                received.write(connection.recv(1 << 16))
        tls.write(HELLO + frame(GOAWAY, 0, 0, bytes(8)))
        connection.sendall(sent.read())
        while connection.recv(1 << 16):
            pass

    options = ClientOptions(tls=TlsOptions(ca=cert), retry=RetryOptions(attempts=1))
    with peer(serve) as port, connected(f"grpcs://localhost:{port}", kind, options) as client:
        with pytest.raises(UnavailableError):
            client.status("m", timeout_s=5)
