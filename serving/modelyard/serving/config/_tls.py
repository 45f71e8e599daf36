"""TLS from TensorFlow Serving's SSLConfig file, which holds PEM contents and no paths."""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from modelyard.errors import ConfigurationError
from modelyard.serving.config._text_proto import read_text_proto
from modelyard.wire import config_pb2


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """Key, certificate and, for client certificates, the authority that signs them.

    Attributes:
        key: PEM text; never shown.
        certificate: PEM text.
        authority: PEM text; empty for the system's.
        verify_client: Clients must show a certificate.
    """

    key: str = field(repr=False)
    certificate: str = field(repr=False)
    authority: str = field(default="", repr=False)
    verify_client: bool = False

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Credentials for a gRPC port."""
        return grpc.ssl_server_credentials(
            [(self.key.encode(), self.certificate.encode())],
            self.authority.encode() or None,
            self.verify_client,
        )

    def context(self) -> ssl.SSLContext:
        """A context for an HTTPS port.

        Raises:
            ConfigurationError: OpenSSL refuses the key or the certificate.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
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


def read_tls_config(path: Path) -> TlsConfig:
    """Reads an SSLConfig file.

    Args:
        path: A ``SSLConfig`` in protobuf text format.

    Raises:
        ConfigurationError: The file cannot be read, lacks key or certificate,
            or OpenSSL refuses them.
    """
    config = read_text_proto(path, config_pb2.SSLConfig(), flag="--ssl_config_file")
    if not config.server_key or not config.server_cert:
        raise ConfigurationError(
            f"--ssl_config_file={path} must hold server_key and server_cert, as PEM text and not as paths."
        )
    if config.client_verify and not config.custom_ca:
        raise ConfigurationError(f"--ssl_config_file={path} asks for client_verify; it must hold custom_ca as well.")
    tls = TlsConfig(
        key=config.server_key,
        certificate=config.server_cert,
        authority=config.custom_ca,
        verify_client=config.client_verify,
    )
    # gRPC itself says nothing more than that the port cannot be had.
    tls.context()
    return tls
