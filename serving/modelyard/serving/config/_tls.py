"""TLS by TensorFlow Serving's SSLConfig file, which holds PEM contents and no paths, or by a folder of PEM files."""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from modelyard.errors import ConfigurationError
from modelyard.serving.config._text_proto import read_text_proto
from modelyard.wire import config_pb2


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """Key, certificate and authority of client certificates, as PEM text; an empty authority is the system's."""

    key: str = field(repr=False)
    certificate: str = field(repr=False)
    authority: str = field(default="", repr=False)
    verify_client: bool = False

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # OpenSSL reads files only: a private one, for as long as the call lasts.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(self.key + "\n" + self.certificate)
                file.flush()
                # With no password given, OpenSSL would ask for one on the terminal.
                context.load_cert_chain(file.name, password="")
            if self.authority:
                context.load_verify_locations(cadata=self.authority)
        except (ssl.SSLError, ValueError) as exc:
            raise ConfigurationError(f"The key or a certificate in --ssl_config_file cannot be used: {exc}") from exc
        if self.verify_client:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


#: A secret of the kind kubernetes.io/tls, as cert-manager writes it.
_KEY, _CERTIFICATE = "tls.key", "tls.crt"


def read_tls_config(path: Path, client_ca: Path | None = None) -> TlsConfig:
    if path.is_dir():
        tls = TlsConfig(
            key=_read(path / _KEY, "--ssl_config_file"), certificate=_read(path / _CERTIFICATE, "--ssl_config_file")
        )
    else:
        tls = _read_message(path)
    if client_ca is not None:
        tls = replace(tls, authority=_read(client_ca, "--ssl_client_ca_file"), verify_client=True)
    # gRPC itself says nothing more than that the port cannot be had.
    tls.context()
    return tls


def _read_message(path: Path) -> TlsConfig:
    config = read_text_proto(path, config_pb2.SSLConfig(), flag="--ssl_config_file", secret=True)
    if not config.server_key or not config.server_cert:
        raise ConfigurationError(
            f"--ssl_config_file={path} must hold server_key and server_cert, as PEM text and not as paths. Files by "
            f"themselves go into a folder, as {_KEY} and {_CERTIFICATE}: --ssl_config_file is that folder then."
        )
    if config.client_verify and not config.custom_ca:
        raise ConfigurationError(f"--ssl_config_file={path} asks for client_verify; it must hold custom_ca as well.")
    return TlsConfig(
        key=config.server_key,
        certificate=config.server_cert,
        authority=config.custom_ca,
        verify_client=config.client_verify,
    )


def _read(path: Path, flag: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"{flag}: {path} cannot be read: {exc}.") from exc
