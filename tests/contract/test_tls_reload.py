"""Key and certificates that change while the server runs, and clients that are known by theirs."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from modelyard.wire import MODEL_SERVICE, serving_pb2
from tests.contract.test_tls import Pair, issue, wait_ready
from tests.support.models import publish_affine
from tests.support.server import TRANSPORT, RunningServer, serve


@dataclass(frozen=True, kw_only=True)
class Room:
    """A server with client certificates, and what its files are."""

    server: RunningServer
    folder: Path
    authority: Pair
    pair: Pair
    ci: Pair
    guest: Pair


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    folder = tmp_path_factory.mktemp("reload")
    publish_affine(folder / "affine", slope=2.0, intercept=0.0)
    authority = issue(folder, "authority")
    pair, ci, guest = (issue(folder, name, authority) for name in ("server", "ci", "guest"))
    # The layout of a secret of Kubernetes.
    secret = folder / "secret"
    secret.mkdir()
    put(secret, pair)
    (folder / "ca.pem").write_bytes(authority.certificate.read_bytes())
    (folder / "access.toml").write_text(
        'anonymous = ["metadata"]\n'
        '[[principal]]\nname = "ci"\ncertificates = ["CN=ci"]\nscopes = ["predict", "admin"]\n'
    )
    flags = [
        f"--ssl_config_file={secret}",
        f"--ssl_client_ca_file={folder / 'ca.pem'}",
        f"--access_file={folder / 'access.toml'}",
    ]
    with serve(folder / "affine", model="affine", log_dir=folder, flags=flags, wait=False, admin=False) as server:
        wait_ready(server, authority, guest)
        yield Room(server=server, folder=folder, authority=authority, pair=pair, ci=ci, guest=guest)


def put(secret: Path, pair: Pair) -> None:
    (secret / "tls.key").write_bytes(pair.key.read_bytes())
    (secret / "tls.crt").write_bytes(pair.certificate.read_bytes())


def rest(room: Room, client: Pair, authority: Pair | None = None) -> http.client.HTTPSConnection:
    context = ssl.create_default_context(cafile=str((authority or room.authority).certificate))
    context.load_cert_chain(client.certificate, client.key)
    return http.client.HTTPSConnection("localhost", room.server.rest_port, context=context, timeout=10)


def ask(connection: http.client.HTTPSConnection, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
    connection.request(method, path, body)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def channel_of(room: Room, client: Pair) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(
        room.authority.certificate.read_bytes(), client.key.read_bytes(), client.certificate.read_bytes()
    )
    # Without this, channels with the same arguments share their connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(f"localhost:{room.server.grpc_port}", credentials, options)


def code_of(channel: grpc.Channel, name: str) -> str:
    """How a call about the model ends."""
    message = serving_pb2.GetModelStatusRequest() if name == "GetModelStatus" else serving_pb2.ReloadConfigRequest()
    if isinstance(message, serving_pb2.GetModelStatusRequest):
        message.model_spec.name = "affine"
    method = channel.unary_unary(MODEL_SERVICE[name].path, bytes, bytes)
    try:
        method(message.SerializeToString(), timeout=10)
    except grpc.RpcError as exc:
        return exc.code().name
    return "OK"


def shown(room: Room) -> int:
    """The serial number of the certificate that the REST port shows to a new connection."""
    connection = rest(room, room.guest)
    connection.connect()
    data: bytes = connection.sock.getpeercert(binary_form=True)  # type: ignore[assignment]  # it is there
    connection.close()
    return x509.load_der_x509_certificate(data).serial_number


def serial(pair: Pair) -> int:
    return x509.load_pem_x509_certificate(pair.certificate.read_bytes()).serial_number


def test_clients_are_known_by_their_certificate(room: Room) -> None:
    body = b'{"instances": [1.0]}'
    for _ in range(2):
        # First Python answers, and then, as a rule, the core.
        connection = rest(room, room.ci)
        assert ask(connection, "POST", "/v1/models/affine:predict", body)[0] == 200
        assert ask(connection, "GET", "/v2/config")[0] == 200
        connection.close()
        connection = rest(room, room.guest)
        status, text = ask(connection, "POST", "/v1/models/affine:predict", body)
        assert (status, "credentials with the scope 'predict'" in json.loads(text)["error"]) == (401, True)
        assert ask(connection, "GET", "/v1/models/affine")[0] == 200
        connection.close()
    with channel_of(room, room.ci) as channel:
        assert (code_of(channel, "GetModelStatus"), code_of(channel, "HandleReloadConfigRequest")) == (
            "PERMISSION_DENIED",
            # Nothing is reloaded by an empty message.
            "INVALID_ARGUMENT",
        )
    with channel_of(room, room.guest) as channel:
        assert (code_of(channel, "GetModelStatus"), code_of(channel, "HandleReloadConfigRequest")) == (
            "OK",
            "UNAUTHENTICATED",
        )


@pytest.mark.skipif(TRANSPORT == "python", reason="the native core's")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_each_connection_shows_its_certificate_anew(room: Room, version: ssl.TLSVersion) -> None:
    """What resumes a session shows none, and would outlive the one that began it."""
    context = ssl.create_default_context(cafile=str(room.authority.certificate))
    context.load_cert_chain(room.guest.certificate, room.guest.key)
    context.minimum_version = context.maximum_version = version
    session = None
    for _ in range(2):
        with (
            socket.create_connection(("localhost", room.server.rest_port), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=session) as secure,
        ):
            secure.sendall(b"GET /v1/models/affine HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert secure.recv(100).startswith(b"HTTP/1.1 200")
            assert not secure.session_reused
            session = secure.session


def test_a_new_certificate_is_shown_and_no_connection_ends(room: Room) -> None:
    secret, path = room.folder / "secret", "/v1/models/affine"
    old = rest(room, room.guest)
    assert ask(old, "GET", path)[0] == 200
    with channel_of(room, room.guest) as channel:
        assert code_of(channel, "GetModelStatus") == "OK"
        assert shown(room) == serial(room.pair)
        renewed = issue(room.folder, "renewed", room.authority)
        put(secret, renewed)
        room.server.wait_until(lambda: shown(room) == serial(renewed), 10, "the new certificate is shown")
        socket = old.sock
        assert (ask(old, "GET", path)[0], old.sock is socket) == (200, True)
        assert code_of(channel, "GetModelStatus") == "OK"
        # A key without its certificate: the last good pair stays, and the log says why.
        (secret / "tls.key").write_bytes(room.pair.key.read_bytes())
        room.server.wait_until(lambda: "TLS stays as it was" in room.server.log_text(), 10, "the log tells")
        assert shown(room) == serial(renewed)
        assert "PRIVATE KEY" not in room.server.log_text()
        put(secret, room.pair)
        room.server.wait_until(lambda: shown(room) == serial(room.pair), 10, "the first certificate is shown again")
        assert (ask(old, "GET", path)[0], old.sock is socket) == (200, True)
        assert code_of(channel, "GetModelStatus") == "OK"
    old.close()


def test_another_authority_of_clients_replaces_the_first(room: Room) -> None:
    other = issue(room.folder, "other-authority")
    stranger = issue(room.folder, "stranger", other)

    def enters(client: Pair) -> tuple[bool, bool]:
        connection = rest(room, client)
        try:
            over_rest = ask(connection, "GET", "/v1/models/affine")[0] == 200
        except OSError:
            over_rest = False
        finally:
            connection.close()
        with channel_of(room, client) as channel:
            return over_rest, code_of(channel, "GetModelStatus") == "OK"

    assert (enters(room.guest), enters(stranger)) == ((True, True), (False, False))
    (room.folder / "ca.pem").write_bytes(other.certificate.read_bytes())
    room.server.wait_until(lambda: enters(stranger) == (True, True), 10, "the new authority is trusted")
    assert enters(room.guest) == (False, False)
    (room.folder / "ca.pem").write_bytes(room.authority.certificate.read_bytes())
    room.server.wait_until(lambda: enters(room.guest) == (True, True), 10, "the first authority is trusted again")


@pytest.mark.parametrize(("version", "works"), [("tls1_1", False), ("tls1_2", True)])
def test_old_versions_of_tls_are_refused(room: Room, version: str, works: bool) -> None:
    for port in (room.server.rest_port, room.server.grpc_port):
        command = [
            "openssl", "s_client", "-connect", f"localhost:{port}", f"-{version}", "-alpn", "h2",
            "-cipher", "ALL:@SECLEVEL=0", "-CAfile", str(room.authority.certificate),
            "-cert", str(room.guest.certificate), "-key", str(room.guest.key),
        ]  # fmt: skip
        done = subprocess.run(command, input=b"", capture_output=True, timeout=20, check=False)
        assert (b"Verify return code: 0 (ok)" in done.stdout and b"Cipher is (NONE)" not in done.stdout) == works
