"""TLS by TensorFlow Serving's SSLConfig file, over gRPC and REST, with and without client certificates."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from google.protobuf import text_format

from modelyard.clients import ClientOptions, TlsOptions, connect
from modelyard.errors import ConfigurationError, UnavailableError
from modelyard.serving import parse_flags
from modelyard.serving.access import LiveTls
from modelyard.serving.config import TlsConfig, read_tls_config
from modelyard.wire import MODEL_SERVICE, config_pb2, serving_pb2
from tests.support.models import publish_affine
from tests.support.server import TRANSPORT, RunningServer, free_port, run_to_end, serve


@dataclass(frozen=True)
class Pair:
    """A key and its certificate, both PEM files."""

    key: Path
    certificate: Path


def openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def issue(folder: Path, name: str, authority: Pair | None = None) -> Pair:
    """A pair signed by an authority; by itself, where there is none."""
    pair = Pair(folder / f"{name}.key", folder / f"{name}.pem")
    request = folder / f"{name}.csr"
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", pair.key]
    if authority is None:
        openssl("req", "-x509", *new, "-out", pair.certificate, "-days", "2", "-subj", f"/CN={name}")
        return pair
    openssl("req", *new, "-out", request, "-subj", f"/CN={name}")
    extensions = folder / f"{name}.ext"
    extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl(
        "x509", "-req", "-in", request, "-CA", authority.certificate, "-CAkey", authority.key, "-CAcreateserial",
        "-out", pair.certificate, "-days", "2", "-extfile", extensions,
    )  # fmt: skip
    return pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    publish_affine(folder / "affine", slope=1.0, intercept=0.0)
    return folder


@pytest.fixture(scope="module")
def authority(folder: Path) -> Pair:
    return issue(folder, "authority")


@pytest.fixture(scope="module")
def server_pair(folder: Path, authority: Pair) -> Pair:
    return issue(folder, "server", authority)


@pytest.fixture(scope="module")
def client_pair(folder: Path, authority: Pair) -> Pair:
    return issue(folder, "client", authority)


def config_flag(folder: Path, server: Pair, authority: Pair | None = None, *, verify: bool = False) -> str:
    config = config_pb2.SSLConfig(
        server_key=server.key.read_text(), server_cert=server.certificate.read_text(), client_verify=verify
    )
    if authority is not None:
        config.custom_ca = authority.certificate.read_text()
    file = folder / f"ssl-{verify}.config"
    file.write_text(text_format.MessageToString(config))
    return f"--ssl_config_file={file}"


def grpc_state(server: RunningServer, authority: Pair, client: Pair | None = None) -> int:
    credentials = grpc.ssl_channel_credentials(
        authority.certificate.read_bytes(),
        None if client is None else client.key.read_bytes(),
        None if client is None else client.certificate.read_bytes(),
    )
    request = serving_pb2.GetModelStatusRequest()
    request.model_spec.name = "affine"
    with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials) as channel:
        call = channel.unary_unary(MODEL_SERVICE["GetModelStatus"].path, bytes, bytes)
        response = serving_pb2.GetModelStatusResponse.FromString(call(request.SerializeToString(), timeout=10))
    return response.model_version_status[0].state


def rest_status(server: RunningServer, authority: Pair, client: Pair | None = None) -> int:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    url = f"https://localhost:{server.rest_port}/v1/models/affine"
    with urllib.request.urlopen(url, context=context, timeout=10) as response:
        response.read()
        return int(response.status)


def wait_ready(server: RunningServer, authority: Pair, client: Pair | None = None) -> None:
    def ready() -> bool:
        try:
            return grpc_state(server, authority, client) == 30
        except grpc.RpcError:
            return False

    server.wait_until(ready, 60, "AVAILABLE over TLS")


def test_both_ports_speak_tls(folder: Path, authority: Pair, server_pair: Pair) -> None:
    flags = [config_flag(folder, server_pair)]
    with serve(folder / "affine", model="affine", log_dir=folder, flags=flags, wait=False) as server:
        wait_ready(server, authority)
        assert rest_status(server, authority) == 200
        # Plain text gets nowhere.
        with grpc.insecure_channel(server.grpc_address) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary(MODEL_SERVICE["GetModelStatus"].path, bytes, bytes)(b"", timeout=10)
        with pytest.raises((OSError, http.client.BadStatusLine)):
            urllib.request.urlopen(f"{server.rest_url}/v1/models/affine", timeout=10).close()


@pytest.mark.skipif(TRANSPORT == "python", reason="uvicorn and gRPC's own server say nothing")
def test_who_comes_without_tls_is_told_so(folder: Path, authority: Pair, server_pair: Pair) -> None:
    said = "This port speaks TLS, and the request came without it; use https://, or grpcs:// for gRPC."
    flags = [config_flag(folder, server_pair)]
    with serve(folder / "affine", model="affine", log_dir=folder, flags=flags, wait=False) as server:
        wait_ready(server, authority)
        for port in (server.grpc_port, server.rest_port):
            # Answered without a body being read, however large it is.
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("POST", "/v1/models/affine:predict", b" " * (1 << 20))
            response = connection.getresponse()
            assert (response.status, json.load(response)) == (400, {"error": said})
            assert response.getheader("connection") == "close"
            connection.close()
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(MODEL_SERVICE["GetModelStatus"].path, bytes, bytes)(b"", timeout=10)
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, said)
        assert rest_status(server, authority) == 200


def test_rest_on_the_grpc_port(folder: Path, authority: Pair, server_pair: Pair) -> None:
    """TLS has the two agree on HTTP/2, in which an error of gRPC would look like success."""
    curl = ["curl", "--silent", "--http2", "--write-out", " %{http_code}", "--cacert", str(authority.certificate)]
    if TRANSPORT == "python" or "HTTP2" not in subprocess.getoutput("curl --version"):
        pytest.skip("needs curl with HTTP/2, and our own server")
    flags = [config_flag(folder, server_pair)]
    with serve(folder / "affine", model="affine", log_dir=folder, flags=flags, wait=False) as server:
        wait_ready(server, authority)
        url = f"https://localhost:{server.grpc_port}/v1/models/affine"
        text = f'{{"error": "This is the gRPC port; the REST API is on port {server.rest_port}."}} 415'
        assert subprocess.run([*curl, url], capture_output=True, text=True, check=True, timeout=30).stdout == text


def test_rest_may_stay_plain(folder: Path, authority: Pair, server_pair: Pair) -> None:
    flags = [config_flag(folder, server_pair), "--rest_api_ssl=false"]
    with serve(folder / "affine", model="affine", log_dir=folder, flags=flags) as server:
        assert server.get("/v1/models/affine")[0] == 200
        wait_ready(server, authority)
        listening = f"listening: gRPC port {server.grpc_port} (TLS), REST port {server.rest_port}\n"
        assert listening in server.log_text()


def test_clients_must_show_a_certificate(folder: Path, authority: Pair, server_pair: Pair, client_pair: Pair) -> None:
    stranger = issue(folder, "stranger", issue(folder, "other-authority"))
    flags = [config_flag(folder, server_pair, authority, verify=True)]
    with serve(folder / "affine", model="affine", log_dir=folder, flags=flags, wait=False) as server:
        wait_ready(server, authority, client_pair)
        assert rest_status(server, authority, client_pair) == 200
        for unwelcome in (None, stranger):
            with pytest.raises(grpc.RpcError) as caught:
                grpc_state(server, authority, unwelcome)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(OSError):
                rest_status(server, authority, unwelcome)
            # uvicorn and gRPC's own server close the connection, and say nothing.
            for port in [] if TRANSPORT == "python" else [server.grpc_port, server.rest_port]:
                scheme = "grpcs" if port == server.grpc_port else "https"
                tls = TlsOptions(
                    ca=authority.certificate,
                    certificate=None if unwelcome is None else unwelcome.certificate,
                    key=None if unwelcome is None else unwelcome.key,
                )
                with connect(f"{scheme}://localhost:{port}", ClientOptions(tls=tls)) as client:
                    with pytest.raises(UnavailableError, match="wants a client's certificate that it trusts: TlsOpt"):
                        client.status("affine", timeout_s=20)
        assert rest_status(server, authority, client_pair) == 200


def test_files_that_cannot_be_used(tmp_path: Path, authority: Pair, server_pair: Pair, client_pair: Pair) -> None:
    key, certificate = server_pair.key.read_text(), server_pair.certificate.read_text()
    locked = tmp_path / "locked.key"
    openssl("ec", "-in", server_pair.key, "-aes256", "-passout", "pass:secret", "-out", locked)
    bad = {
        "must hold server_key and server_cert": config_pb2.SSLConfig(server_key=key),
        "must hold custom_ca": config_pb2.SSLConfig(server_key=key, server_cert=certificate, client_verify=True),
        r"=.*/ssl\.config: server_key cannot be used: .* expected a private key without": config_pb2.SSLConfig(
            server_key=str(server_pair.key), server_cert=certificate
        ),
        "server_key and --ssl_config_file=.*: server_cert do not belong together": config_pb2.SSLConfig(
            server_key=client_pair.key.read_text(), server_cert=certificate
        ),
        "server_key cannot be used: .* without a password": config_pb2.SSLConfig(
            server_key=locked.read_text(), server_cert=certificate
        ),
        "server_cert cannot be used: .* expected certificates as PEM": config_pb2.SSLConfig(
            server_key=key, server_cert="def"
        ),
        "custom_ca cannot be used: .* expected certificates": config_pb2.SSLConfig(
            server_key=key, server_cert=certificate, custom_ca="no certificate"
        ),
    }
    file = tmp_path / "ssl.config"
    for message, config in bad.items():
        file.write_text(text_format.MessageToString(config))
        with pytest.raises(ConfigurationError, match=message) as caught:
            read_tls_config(file)
        assert "PRIVATE KEY" not in caught.value.message
    file.write_text("server_key: unquoted")
    with pytest.raises(ConfigurationError, match="in protobuf text format: line 1, column 13") as caught:
        read_tls_config(file)
    # What stands there may be a key.
    assert "unquoted" not in caught.value.message
    assert caught.value.__cause__ is None
    secret = tmp_path / "secret"
    secret.mkdir()
    with pytest.raises(ConfigurationError, match=r"--ssl_config_file: .*tls\.key cannot be read"):
        read_tls_config(secret)
    (secret / "tls.key").write_text(key)
    (secret / "tls.crt").write_text(certificate)
    assert read_tls_config(secret) == TlsConfig(key=key, certificate=certificate)
    (secret / "tls.key").write_text("junk")
    with pytest.raises(ConfigurationError, match=r"--ssl_config_file: .*/secret/tls\.key cannot be used"):
        read_tls_config(secret)
    (secret / "tls.key").write_text(key)
    (secret / "tls.crt").write_text("junk")
    with pytest.raises(ConfigurationError, match=r"--ssl_config_file: .*/secret/tls\.crt cannot be used"):
        read_tls_config(secret)
    (secret / "tls.crt").write_text(certificate)
    with pytest.raises(ConfigurationError, match=r"--ssl_client_ca_file=.*/locked\.key cannot be used"):
        read_tls_config(secret, locked)
    with pytest.raises(ConfigurationError, match=r"--ssl_client_ca_file: .*absent cannot be read"):
        read_tls_config(secret, tmp_path / "absent")
    with pytest.raises(ConfigurationError, match="--ssl_config_file is not: clients show"):
        parse_flags(["--model_base_path=/m", "--ssl_client_ca_file=ca.pem"])


def test_whether_clients_show_a_certificate_changes_at_a_restart_only(
    tmp_path: Path, authority: Pair, server_pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(config_flag(tmp_path, server_pair).partition("=")[2])
    tls = LiveTls(read_tls_config(path), path)
    told: list[TlsConfig] = []
    tls.on_change(told.append)
    path.write_text(Path(config_flag(tmp_path, server_pair, authority, verify=True).partition("=")[2]).read_text())
    for _ in range(2):
        tls.look()
    assert (told, tls.config.verify_client) == ([], False)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "that changes when the server is started again" in caplog.text


def test_secrets_are_not_shown(tmp_path: Path, server_pair: Pair) -> None:
    flag = config_flag(tmp_path, server_pair)
    assert "PRIVATE KEY" not in repr(read_tls_config(Path(flag.partition("=")[2])))


def valid_between(folder: Path, name: str, begin: datetime, end: datetime) -> Pair:
    """A pair that is an authority and signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(named, named, key.public_key(), x509.random_serial_number(), begin, end)
    signed = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    pair = Pair(folder / f"{name}.key", folder / f"{name}.pem")
    pair.certificate.write_bytes(signed.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return pair


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (-90, 60, ""),
        (-90, 5, r": server_cert expires at \w{3} .* GMT, and clients refuse to connect then\. Renew it\."),
        (-90, -1, r": server_cert: certificate has expired, and clients refuse to connect\."),
        (1, 90, r": server_cert: certificate is not yet valid, and clients refuse to connect\."),
    ],
)
def test_what_is_wrong_with_a_certificates_dates_is_said(tmp_path: Path, begin: int, end: int, expected: str) -> None:
    now = datetime.now(UTC)
    pair = valid_between(tmp_path, "dated", now + timedelta(days=begin), now + timedelta(days=end))
    found = read_tls_config(Path(config_flag(tmp_path, pair).partition("=")[2])).date_problem()
    assert re.search(expected, found) if expected else not found, found


def test_dates_are_looked_at_when_the_server_starts_and_for_each_new_certificate(
    tmp_path: Path, folder: Path, authority: Pair, server_pair: Pair
) -> None:
    expired = valid_between(tmp_path, "expired", datetime(2020, 1, 1), datetime(2021, 1, 1))
    secret = tmp_path / "secret"
    secret.mkdir()

    def put(pair: Pair) -> None:
        for name, file in (("tls.key", pair.key), ("tls.crt", pair.certificate)):
            (secret / name).write_bytes(file.read_bytes())

    put(expired)
    flags = [f"--ssl_config_file={secret}"]
    said = "tls.crt: certificate has expired, and clients refuse to connect."
    with serve(folder / "affine", model="affine", log_dir=tmp_path, flags=flags, wait=False) as server:
        server.wait_until(lambda: server.log_text().count(said) == 1, 60, "a warning at the start")
        put(server_pair)
        wait_ready(server, authority)
        put(expired)
        server.wait_until(lambda: server.log_text().count(said) == 2, 60, "a warning at the reload")


def test_clients_of_an_authority_that_has_expired_are_not_let_in(
    tmp_path: Path, folder: Path, authority: Pair, server_pair: Pair, client_pair: Pair
) -> None:
    """Among others that are valid; and where it is the only one, the server does not start."""
    expired = valid_between(tmp_path, "expired", datetime(2020, 1, 1), datetime(2021, 1, 1))
    former = issue(tmp_path, "former", expired)
    both = Pair(authority.key, tmp_path / "both.pem")
    both.certificate.write_text(
        "# Főtanúsítvány\n" + expired.certificate.read_text() + authority.certificate.read_text()
    )
    flags = [config_flag(tmp_path, server_pair, both, verify=True)]
    with serve(folder / "affine", model="affine", log_dir=tmp_path, flags=flags, wait=False) as server:
        wait_ready(server, authority, client_pair)
        assert rest_status(server, authority, client_pair) == 200
        with pytest.raises(OSError):
            rest_status(server, authority, former)
    alone = Path(config_flag(tmp_path, server_pair, expired, verify=True).partition("=")[2])
    with pytest.raises(ConfigurationError, match=r"ssl-True\.config: custom_ca has expired \(Jan  1 00:00:00 2021 GMT"):
        read_tls_config(alone)
    # Where nobody has to show a certificate, it does not matter.
    assert not read_tls_config(Path(config_flag(tmp_path, server_pair, expired).partition("=")[2])).verify_client


def test_a_chain_and_its_key_of_another_kind(tmp_path: Path, server_pair: Pair) -> None:
    """OpenSSL's own words for these are about something else."""
    certificate = server_pair.certificate.read_text()
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "rsa.key", "-out",
            tmp_path / "rsa.pem", "-subj", "/CN=rsa")  # fmt: skip
    openssl("req", "-x509", "-newkey", "rsa:1024", "-nodes", "-keyout", tmp_path / "small.key", "-out",
            tmp_path / "small.pem", "-subj", "/CN=small")  # fmt: skip
    rsa = (tmp_path / "rsa.pem").read_text()
    file = tmp_path / "ssl.config"

    def refusal(key: Path, certificates: str) -> str:
        file.write_text(text_format.MessageToString(
            config_pb2.SSLConfig(server_key=key.read_text(), server_cert=certificates)
        ))  # fmt: skip
        with pytest.raises(ConfigurationError) as caught:
            read_tls_config(file)
        return caught.value.message

    for key, certificates in ((tmp_path / "rsa.key", certificate), (server_pair.key, rsa + certificate)):
        message = refusal(key, certificates)
        assert "do not belong together; expected the key of the first certificate there: the server's own" in message
    small = refusal(tmp_path / "small.key", (tmp_path / "small.pem").read_text())
    assert f"{file}: server_cert cannot be used" in small
    assert "expected RSA keys of 2048 bits or more" in small
    # A comment in letters beyond ASCII, as bundles of authorities have them, is none of TLS's business.
    file.write_text(text_format.MessageToString(
        config_pb2.SSLConfig(server_key=server_pair.key.read_text(), server_cert="# Zürich\n" + certificate + rsa)
    ))  # fmt: skip
    assert read_tls_config(file).certificate.startswith("# Zürich")


@pytest.mark.skipif(TRANSPORT == "python", reason="the native core's")
def test_a_kind_of_key_that_the_transport_lacks(tmp_path: Path, folder: Path) -> None:
    key, certificate = tmp_path / "k1.key", tmp_path / "k1.pem"
    openssl("ecparam", "-name", "secp256k1", "-genkey", "-noout", "-out", key)
    openssl("req", "-x509", "-new", "-key", key, "-out", certificate, "-subj", "/CN=localhost")
    code, said = run_to_end(
        f"--model_base_path={folder / 'affine'}", f"--port={free_port()}", "--transport=native",
        config_flag(tmp_path, Pair(key, certificate)),
    )  # fmt: skip
    assert code == 1
    assert f"{tmp_path / 'ssl-False.config'}: server_key" in said
    assert "expected a key of RSA with 2048 bits or more, of the curve P-256 or P-384, or Ed25519" in said
