"""The file of principals: their credentials, scopes and quotas."""

from __future__ import annotations

import hashlib
import hmac
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, TypeVar, get_args

from modelyard.errors import ConfigurationError
from modelyard.serving.access._credentials import normal_subject
from modelyard.serving.access._quotas import Limits, Quota

_T = TypeVar("_T")
Scope = Literal["predict", "metadata", "metrics", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_PRINCIPAL_FIELDS = (
    "name", "scopes", "keys", "certificates", "claims", "requests_per_second", "rows_per_second", "max_in_flight"
)  # fmt: skip
_JWT_TEXTS = ("jwks", "issuer", "audience")
#: Signatures that need no secret here; a shared secret would let the server make tokens.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


@dataclass(frozen=True, kw_only=True)
class Principal:
    """A caller that is known; ``grants`` are scopes with the patterns of the models that they are for."""

    name: str
    grants: tuple[tuple[Scope, str], ...]
    claims: Mapping[str, object] = field(default_factory=dict)
    quota: Quota | None = None

    def may(self, scope: Scope, model: str) -> bool:
        """Whether a scope is granted for a model; the server as a whole, an empty name, matches ``*`` only."""
        return any(granted == scope and fnmatchcase(model, pattern) for granted, pattern in self.grants)


@dataclass(frozen=True, kw_only=True)
class JwtOptions:
    """Which web tokens are accepted; ``jwks`` is the file, or the https URL, of the keys that sign them."""

    jwks: Path | str
    issuer: str
    audience: str
    algorithms: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """All principals; of those with claims, the first in the file that fits a token is its principal."""

    anonymous: Principal
    by_key: Mapping[bytes, Principal] = field(repr=False)
    by_certificate: Mapping[str, Principal]
    by_claims: tuple[Principal, ...]
    jwt: JwtOptions | None

    @property
    def principals(self) -> tuple[Principal, ...]:
        """Each of them once."""
        found = (*self.by_key.values(), *self.by_certificate.values(), *self.by_claims, self.anonymous)
        return tuple({principal.name: principal for principal in found}.values())

    def of_key(self, key: str) -> Principal | None:
        """The principal of a key, whose hash is compared in constant time."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        found = None
        for known, principal in self.by_key.items():
            if hmac.compare_digest(known, digest):
                found = principal
        return found

    def of_claims(self, claims: Mapping[str, object]) -> Principal | None:
        for principal in self.by_claims:
            if all(_says(claims.get(name), wanted) for name, wanted in principal.claims.items()):
                return principal
        return None


def _says(value: object, wanted: object) -> bool:
    """Whether a claim is or holds the wanted value: groups and roles are lists, OAuth's scopes are words."""
    if isinstance(value, str) and isinstance(wanted, str):
        return value == wanted or wanted in value.split()
    # To Python, true is the number 1.
    values = value if isinstance(value, list) else [value]
    return any(each == wanted and isinstance(each, bool) == isinstance(wanted, bool) for each in values)


def read_rules(path: Path, content: bytes, before: Rules | None = None) -> Rules:
    """Parses a file of principals; quotas that did not change keep what was used of them ``before``."""
    if before is not None and not content.strip():
        # A file that is being written is empty for a moment.
        raise ConfigurationError(
            f"--access_file={path} is empty, and what it said before holds; for a file that lets nobody in, write a "
            "comment into it."
        )
    try:
        document = tomllib.loads(content.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigurationError(f"--access_file={path} cannot be read as TOML: {exc}.") from exc
    try:
        return _rules(document, path.parent, before)
    except _Wrong as exc:
        raise ConfigurationError(f"--access_file={path}: {exc}") from exc


class _Wrong(ValueError):
    """The file is not valid."""


def _rules(document: Mapping[str, object], folder: Path, before: Rules | None) -> Rules:
    _check_fields(document, ("principal", "jwt", "anonymous"), "the file")
    quotas = {principal.name: principal.quota for principal in (before.principals if before else ())}
    by_key: dict[bytes, Principal] = {}
    by_certificate: dict[str, Principal] = {}
    by_claims: list[Principal] = []
    names: set[str] = set()
    jwt = _jwt(document["jwt"], folder) if "jwt" in document else None
    for item in _list(document.get("principal", []), dict, "principal", "tables, written [[principal]]"):
        name = item.get("name")
        if not isinstance(name, str) or not is_name(name) or name in names:
            raise _Wrong(f"a principal's name is {name!r}; expected a text that no other principal has.")
        names.add(name)
        what = f"principal {name!r}"
        _check_fields(item, _PRINCIPAL_FIELDS, what)
        principal = Principal(
            name=name,
            grants=grants_of(item.get("scopes", []), what),
            claims=_claims(item.get("claims", {}), what),
            quota=_quota(item, name, quotas.get(name)),
        )
        for text in _list(item.get("keys", []), str, f"keys of {what}", "texts"):
            match = _HASH.fullmatch(text)
            # It may be a key itself: the error does not repeat it.
            if match is None:
                raise _Wrong(
                    f"a key of {what} is not sha256: and 64 hexadecimal digits. The file holds hashes, as modelyard "
                    "keys prints them, and no keys."
                )
            if by_key.setdefault(bytes.fromhex(match[1]), principal) is not principal:
                raise _Wrong(f"a key of {what} is another principal's, too.")
        for text in _list(item.get("certificates", []), str, f"certificates of {what}", "texts"):
            try:
                subject = normal_subject(text)
            except ValueError as exc:
                raise _Wrong(
                    f"{what} has the certificate {text!r}; expected a subject such as CN=ci,O=Example."
                ) from exc
            if by_certificate.setdefault(subject, principal) is not principal:
                raise _Wrong(f"the certificate {text!r} of {what} is another principal's, too.")
        if principal.claims:
            if jwt is None:
                raise _Wrong(f"{what} has claims, and there is no [jwt] that says which tokens are believed.")
            by_claims.append(principal)
        # One that no caller can be is no mistake: its last key may just have been taken back.
    anonymous = Principal(name="", grants=grants_of(document.get("anonymous", []), "anonymous"))
    return Rules(anonymous=anonymous, by_key=by_key, by_certificate=by_certificate, by_claims=tuple(by_claims), jwt=jwt)


def is_name(text: str) -> bool:
    """Whether a text may name a principal: it stands in lines of the log."""
    return bool(text) and text.isprintable()


def grants_of(texts: object, what: str) -> tuple[tuple[Scope, str], ...]:
    grants: list[tuple[Scope, str]] = []
    for text in _list(texts, str, f"scopes of {what}", "texts"):
        scope, colon, pattern = text.partition(":")
        found = next((known for known in SCOPES if known == scope), None)
        if found is None or (colon and not pattern):
            raise _Wrong(
                f"{what} has the scope {text!r}; expected one of {', '.join(SCOPES)}, with a pattern of models where "
                "it is not for all: predict:fashion*"
            )
        grants.append((found, pattern or "*"))
    return tuple(grants)


def _claims(table: object, what: str) -> Mapping[str, object]:
    claims = _table(table, what)
    for name, value in claims.items():
        if not isinstance(value, str | int | float) or value != value:
            raise _Wrong(
                f"{what} has the claim {name} = {value!r}; expected one text, number or boolean, which a token may "
                "have among others."
            )
    return claims


def _quota(item: Mapping[str, object], name: str, before: Quota | None) -> Quota | None:
    def number(field_name: str, *kinds: type) -> float:
        value = item.get(field_name, 0)
        if isinstance(value, int | float) and type(value) in kinds and 0 <= value < float("inf"):
            return value
        raise _Wrong(f"principal {name!r} has {field_name} = {value!r}; expected a number, 0 for no limit.")

    limits = Limits(
        requests_per_second=number("requests_per_second", int, float),
        rows_per_second=number("rows_per_second", int, float),
        max_in_flight=int(number("max_in_flight", int)),
    )
    if limits == Limits():
        return None
    return before if before is not None and before.limits == limits else Quota(name, limits)


def _jwt(table: object, folder: Path) -> JwtOptions:
    values = _table(table, "[jwt]")
    _check_fields(values, (*_JWT_TEXTS, "algorithms"), "[jwt]")
    texts: list[str] = []
    for name in _JWT_TEXTS:
        value = values.get(name)
        if not isinstance(value, str) or not value:
            raise _Wrong(f"[jwt] has {name} = {value!r}; expected a text. All of {', '.join(_JWT_TEXTS)}")
        texts.append(value)
    jwks, issuer, audience = texts
    algorithms = tuple(_list(values.get("algorithms", list(ALGORITHMS)), str, "algorithms of [jwt]", "texts"))
    if unknown := [name for name in algorithms if name not in ALGORITHMS]:
        raise _Wrong(f"[jwt] has the algorithm {unknown[0]!r}; expected some of {', '.join(ALGORITHMS)}.")
    if jwks.startswith("http://") and not jwks.startswith(("http://localhost:", "http://127.0.0.1:")):
        raise _Wrong(f"[jwt] has jwks = {jwks!r}; keys could be changed on the way: expected https, or a file.")
    source = jwks if jwks.startswith(("http://", "https://")) else folder / jwks
    return JwtOptions(jwks=source, issuer=issuer, audience=audience, algorithms=algorithms)


def _check_fields(item: Mapping[str, object], known: Sequence[str], what: str) -> None:
    if unknown := sorted(set(item) - set(known)):
        raise _Wrong(f"{what} has {unknown[0]!r}; expected some of {', '.join(known)}.")


def _table(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _Wrong(f"{what} has {type(value).__name__}; expected a table.")
    return value


def _list(value: object, kind: type[_T], what: str, expected: str) -> list[_T]:
    found = [item for item in value if isinstance(item, kind)] if isinstance(value, list) else None
    if found is None or found != value:
        raise _Wrong(f"{what}: expected a list of {expected}.")
    return found
