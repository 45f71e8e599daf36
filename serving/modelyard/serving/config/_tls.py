"""TLS by TensorFlow Serving's SSLConfig file, which holds PEM contents and no paths, or by a folder of PEM files."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from modelyard.errors import ConfigurationError
from modelyard.serving.config._scratch import scratch_file, scratch_path
from modelyard.serving.config._text_proto import read_text_proto
from modelyard.wire import config_pb2

#: OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED.
_DATES = (9, 10)


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
        _, certificate, authority = self.names
        # OpenSSL does not say which of them is wrong: one after the other.
        _load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.certificate, certificate)
        if self.authority:
            _load_certificates(context, self.authority, authority)
        try:
            # OpenSSL reads files only: a private one, for as long as the call lasts.
            with scratch_file() as file:
                file.write(f"{self.key}\n{self.certificate}".encode())
                file.flush()
                # With no password given, OpenSSL would ask for one on the terminal.
                context.load_cert_chain(scratch_path(file), password="")
        except (ssl.SSLError, ValueError) as exc:
            raise ConfigurationError(self._complaint(exc)) from exc
        except OSError as exc:
            raise ConfigurationError(
                f"{self.names[0]} cannot be loaded: OpenSSL reads files only, and a temporary one cannot be written: "
                f"{exc}."
            ) from exc
        if self.verify_client:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def date_problem(self) -> str:
        """What is wrong with the dates of the server's own certificate; empty where nothing is.

        Python tells the dates of nobody's certificate but a peer's: a client in this process trusts it, and comes.
        """
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        # Whoever has issued it: whether that one has expired is another matter.
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        _load_certificates(client, self.certificate, self.names[1])
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        own = client.wrap_bio(to_client, to_server)
        server = replace(self, verify_client=False).context().wrap_bio(to_server, to_client, server_side=True)
        name = self.names[1]
        try:
            for side in (own, server, own):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        except ssl.SSLCertVerificationError as exc:
            if exc.verify_code in _DATES:
                return f"{name}: {exc.verify_message}, and clients refuse to connect. Put one there that is valid now."
        # What else may be wrong with it is not about dates, and clients say it.
        except ssl.SSLError:
            return ""
        dates = own.getpeercert() or {}
        if "notAfter" not in dates:
            return ""
        begin, end = (ssl.cert_time_to_seconds(str(dates[key])) for key in ("notBefore", "notAfter"))
        if end - time.time() < (end - begin) / 10:
            return f"{name} expires at {dates['notAfter']}, and clients refuse to connect then. Renew it."
        return ""

    def _complaint(self, problem: Exception) -> str:
        key, certificate, _ = self.names
        reason = getattr(problem, "reason", None)
        # No certificate is assigned to a key of another kind, such as RSA, than the first certificate's.
        if reason in ("KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):
            return (
                f"{key} and {certificate} do not belong together; expected the key of the first certificate there: the "
                "server's own stands first, and those of its authorities after it."
            )
        if reason in ("EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"):
            return (
                f"{certificate} cannot be used: {problem}; expected RSA keys of 2048 bits or more, or elliptic curves, "
                "and signatures by SHA-256. Have a new certificate issued."
            )
        if "ENCRYPTED" in self.key:
            return (
                f"{key} cannot be used: it has a password; expected a private key without a password, as a PEM block: "
                "openssl pkey -in KEY writes it so."
            )
        return f"{key} cannot be used: {problem}; expected a private key without a password, as a PEM block."


def _load_certificates(context: ssl.SSLContext, text: str, name: str) -> None:
    try:
        # What stands between the blocks, such as an authority's name, may be of any letters; here it must be ASCII.
        context.load_verify_locations(cadata=text.encode("ascii", "replace").decode("ascii"))
    except (ssl.SSLError, ValueError) as exc:
        raise ConfigurationError(
            f"{name} cannot be used: {exc}; expected certificates as PEM blocks (-----BEGIN CERTIFICATE-----)."
        ) from exc


_BLOCK = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def _without_expired(tls: TlsConfig) -> TlsConfig:
    """Without authorities that have expired: OpenSSL refuses their clients, and the native core would not."""
    blocks = _BLOCK.findall(tls.authority) if tls.verify_client else []
    if not blocks:
        return tls
    good = [block for block in blocks if not _expired(block)]
    if not good:
        raise ConfigurationError(
            f"{tls.names[2]} has expired ({_expired(blocks[0])}), and no client could connect; expected the "
            "certificate of an authority that is valid now."
        )
    return tls if good == blocks else replace(tls, authority="\n".join([*good, ""]))


def _expired(block: str) -> str:
    """When an authority's certificate has expired; empty where it has not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(cadata=block)
    ends = [str(certificate["notAfter"]) for certificate in context.get_ca_certs()]
    return "".join(end for end in ends if ssl.cert_time_to_seconds(end) < time.time())


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
    return _without_expired(tls)


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
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"{flag}: {path} cannot be read: {exc}.") from exc
