"""TLS by TensorFlow Serving's SSLConfig file, which holds PEM contents and no paths, or by a folder of PEM files."""

from __future__ import annotations

import os
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
    #: Where key, certificate and authority are from, as errors name them.
    names: tuple[str, str, str] = field(default=("server_key", "server_cert", "custom_ca"), repr=False, compare=False)

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        key, certificate, authority = self.names
        # OpenSSL does not say which of them is wrong: one after the other.
        _load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.certificate, certificate)
        if self.authority:
            _load_certificates(context, self.authority, authority)
        try:
            # OpenSSL reads files only: a private one, for as long as the call lasts.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(self.key + "\n" + self.certificate)
                file.flush()
                # With no password given, OpenSSL would ask for one on the terminal.
                context.load_cert_chain(file.name, password="")
        except (ssl.SSLError, ValueError) as exc:
            if isinstance(exc, ssl.SSLError) and exc.reason == "KEY_VALUES_MISMATCH":
                raise ConfigurationError(
                    f"{key} and {certificate} do not belong together; expected the key of the first certificate there."
                ) from exc
            raise ConfigurationError(
                f"{key} cannot be used: {exc}; expected a private key without a password, as a PEM block."
            ) from exc
        except OSError as exc:
            raise ConfigurationError(
                f"{key} cannot be loaded: OpenSSL reads files only, and a temporary one cannot be written: {exc}."
            ) from exc
        if self.verify_client:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _load_certificates(context: ssl.SSLContext, text: str, name: str) -> None:
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as exc:
        raise ConfigurationError(
            f"{name} cannot be used: {exc}; expected certificates as PEM blocks (-----BEGIN CERTIFICATE-----)."
        ) from exc


#: A secret of the kind kubernetes.io/tls, as cert-manager writes it.
_KEY, _CERTIFICATE = "tls.key", "tls.crt"


def read_tls_config(path: Path, client_ca: Path | None = None) -> TlsConfig:
    if os.path.isdir(path):
        key, certificate = path / _KEY, path / _CERTIFICATE
        tls = TlsConfig(
            key=_read(key, "--ssl_config_file"),
            certificate=_read(certificate, "--ssl_config_file"),
            names=(f"--ssl_config_file: {key}", f"--ssl_config_file: {certificate}", ""),
        )
    else:
        tls = _read_message(path)
    if client_ca is not None:
        authority = _read(client_ca, "--ssl_client_ca_file")
        names = (*tls.names[:2], f"--ssl_client_ca_file={client_ca}")
        tls = replace(tls, authority=authority, verify_client=True, names=names)
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
        names=(
            f"--ssl_config_file={path}: server_key",
            f"--ssl_config_file={path}: server_cert",
            f"--ssl_config_file={path}: custom_ca",
        ),
    )


def _read(path: Path, flag: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"{flag}: {path} cannot be read: {exc}.") from exc
