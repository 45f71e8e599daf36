"""TLS of HTTP connections."""

from __future__ import annotations

import ssl

from modelyard.clients.transport import TlsOptions
from modelyard.errors import ConfigurationError


def ssl_context(tls: TlsOptions) -> ssl.SSLContext:
    """Makes a context that checks certificates and names."""
    try:
        context = ssl.create_default_context(cafile=None if tls.ca is None else str(tls.ca))
        if tls.certificate is not None:
            # With no password given, OpenSSL would ask for one on the terminal, and wait.
            context.load_cert_chain(tls.certificate, tls.key, password="")
    except (OSError, ValueError) as exc:
        files = ", ".join(str(path) for path in (tls.ca, tls.certificate, tls.key) if path is not None)
        raise ConfigurationError(
            f"The TLS files {files} cannot be used: {exc}; expected PEM files, and the key of the first certificate, "
            "without a password."
        ) from exc
    return context
