"""Flags that say who may do what, and where keys and certificates are."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modelyard.errors import ConfigurationError

#: Who may administer without credentials: nobody, callers on this machine, or anybody.
InsecureAdmin = Literal["", "loopback", "anywhere"]


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """Files of credentials, which are looked at again while the server runs.

    Attributes:
        file: The principals; None to let everybody do everything but administer.
        insecure_admin: Who may administer without credentials.
        ssl_config_file: Where TLS's key and certificate came from; None for plain text.
        ssl_client_ca_file: So, the authority of clients' certificates, where a file of its own has it.
    """

    file: Path | None = None
    insecure_admin: InsecureAdmin = ""
    ssl_config_file: Path | None = None
    ssl_client_ca_file: Path | None = None


def access_options(args: argparse.Namespace) -> AccessOptions:
    """The options that flags set.

    Args:
        args: The flags.

    Raises:
        ConfigurationError: A flag is set that needs another.
    """
    if args.ssl_client_ca_file and not args.ssl_config_file:
        raise ConfigurationError(
            f"--ssl_client_ca_file={args.ssl_client_ca_file} is set, and --ssl_config_file is not: clients show "
            "certificates over TLS only."
        )
    return AccessOptions(
        file=_path(args.access_file),
        insecure_admin=args.insecure_admin,
        ssl_config_file=_path(args.ssl_config_file),
        ssl_client_ca_file=_path(args.ssl_client_ca_file),
    )


def _path(text: str) -> Path | None:
    return Path(text) if text else None
