"""Ed25519 signatures of versions: a detached signature over the bytes of the manifest.

The manifest has the checksum of every file, so a signature of it covers the
version. ``manifest.json.sig`` holds the 64 bytes as they are, which openssl
reads, too::

    openssl pkeyutl -verify -pubin -inkey key.pub.pem -rawin -in manifest.json -sigfile manifest.json.sig
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from modelyard.errors import ConfigurationError, IntegrityError
from modelyard.lazy import needs_extra

#: Beside the manifest, and like it not listed in it.
SIGNATURE_NAME = "manifest.json.sig"
SIGNATURE_BYTES = 64
_PURPOSE = "Signing and checking versions"

#: Makes the signature of a manifest's bytes.
Signer = Callable[[bytes], bytes]


@dataclass(frozen=True, kw_only=True)
class TrustedKey:
    """A public key whose signatures count: where it came from, and its 32 bytes in hexadecimal."""

    name: str
    public: str

    @property
    def fingerprint(self) -> str:
        """First 16 digits of the SHA-256 of the key, for people."""
        return hashlib.sha256(bytes.fromhex(self.public)).hexdigest()[:16]


def generate_key(path: Path) -> Path:
    """Makes a key pair; the private key can be read by its owner alone.

    Args:
        path: Where the private key goes, in PEM; the public key goes to the
            same place, with ``.pub.pem`` for the suffix.

    Returns:
        Where the public key is.

    Raises:
        ConfigurationError: One of the files exists, or cannot be written.
        MissingDependencyError: cryptography is not installed.
    """
    with needs_extra("signing", "cryptography", purpose=_PURPOSE):
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    if not path.name:
        raise ConfigurationError(f"The key is to be written to {str(path)!r}; expected a file, such as key.pem.")
    public = path.with_suffix(".pub.pem")
    if public.exists():
        raise ConfigurationError(f"{public} exists; expected a new file. Choose another name.")
    key = Ed25519PrivateKey.generate()
    private_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public_pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(private_pem)
        public.write_bytes(public_pem)
    except OSError as exc:
        raise ConfigurationError(f"Cannot write {path}: {exc.strerror}. Expected a new file.") from exc
    return public


def load_signing_key(path: Path) -> Signer:
    """Reads a private key.

    Args:
        path: An Ed25519 key in PEM, not encrypted.

    Raises:
        ConfigurationError: It cannot be read, or is no such key.
        MissingDependencyError: cryptography is not installed.
    """
    content = _read(path)
    with needs_extra("signing", "cryptography", purpose=_PURPOSE):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError):
        # Neither the text of the error nor its cause: they may quote the file.
        raise _unfit(path, "a private Ed25519 key in PEM, not encrypted") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _unfit(path, "a private Ed25519 key")
    return key.sign


def load_trusted_keys(paths: Sequence[Path]) -> tuple[TrustedKey, ...]:
    """Reads public keys.

    Args:
        paths: Ed25519 keys in PEM.

    Raises:
        ConfigurationError: One cannot be read, or is no such key.
        MissingDependencyError: cryptography is not installed.
    """
    if not paths:
        return ()
    with needs_extra("signing", "cryptography", purpose=_PURPOSE):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    keys = []
    for path in paths:
        try:
            key = load_pem_public_key(_read(path))
        except ValueError:
            raise _unfit(path, "a public Ed25519 key in PEM (modelyard repo keygen writes it to *.pub.pem)") from None
        if not isinstance(key, Ed25519PublicKey):
            raise _unfit(path, "a public Ed25519 key")
        keys.append(TrustedKey(name=str(path), public=key.public_bytes_raw().hex()))
    return tuple(keys)


def check_signature(manifest: bytes, signature: bytes | None, keys: Sequence[TrustedKey], *, place: str) -> TrustedKey:
    """Returns the one of the keys that signed a manifest; ``place`` names the version in errors.

    Raises:
        IntegrityError: There is no signature, or it is not by one of the keys.
        MissingDependencyError: cryptography is not installed.
    """
    with needs_extra("signing", "cryptography", purpose=_PURPOSE):
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    known = ", ".join(f"{key.name} ({key.fingerprint})" for key in keys)
    if signature is None:
        raise IntegrityError(
            f"{place} is not signed: it has no {SIGNATURE_NAME}. Expected a signature by {known}; sign it with: "
            "modelyard repo sign"
        )
    if len(signature) == SIGNATURE_BYTES:
        for key in keys:
            try:
                Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.public)).verify(signature, manifest)
            except InvalidSignature:
                continue
            return key
    raise IntegrityError(
        f"{place} has a {SIGNATURE_NAME} that is not by {known}: its manifest was altered, or somebody else signed it."
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ConfigurationError(f"The key {path} cannot be read: {exc.strerror}.") from exc


def _unfit(path: Path, expected: str) -> ConfigurationError:
    return ConfigurationError(f"{path} is no key that fits; expected {expected}.")
