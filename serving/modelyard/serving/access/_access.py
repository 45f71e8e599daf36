"""Authentication and authorization of requests."""

from __future__ import annotations

import base64
import contextlib
import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from modelyard.errors import (
    ConfigurationError,
    ModelyardError,
    OverloadedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from modelyard.serving.access._credentials import UNIX_SOCKET, Credentials, subject_of
from modelyard.serving.access._jwt import Tokens
from modelyard.serving.access._principals import Principal, Rules, Scope, read_rules
from modelyard.serving.access._quotas import Ticket
from modelyard.serving.config import Complaints, InsecureAdmin

_LOG = logging.getLogger("modelyard.serving.access")

#: Ticket of the gRPC call that this task answers.
admitted: ContextVar[Ticket | None] = ContextVar("admitted", default=None)

_ANYBODY = Principal(name="", grants=(("predict", "*"), ("metadata", "*"), ("metrics", "*")))


@dataclass(frozen=True, kw_only=True)
class _Known:
    rules: Rules
    tokens: Tokens | None


class Access:
    """Decides who may do what; without a file, everybody may do everything but administer."""

    def __init__(
        self, file: Path | None = None, *, insecure_admin: InsecureAdmin = "", unix_socket: bool = False
    ) -> None:
        self._unix_socket = unix_socket
        self._file = file
        self._insecure_admin = insecure_admin
        self._complaints = Complaints(_LOG)
        self._content = b""
        # Replaced as a whole, so that no decision mixes old and new rules.
        self._known: _Known | None = None
        #: Told the model of each request that a quota refuses.
        self.refused: Callable[[str], None] = lambda _: None
        if file is not None:
            self._load(file)

    @property
    def guarded(self) -> bool:
        """Whether anything but administration needs credentials."""
        return self._known is not None

    def asks(self, scope: Scope) -> bool:
        """Whether callers must show credentials."""
        return self._known is not None or scope == "admin"

    def identify(self, credentials: Credentials, scope: Scope) -> Principal:
        """Returns the principal of a caller that may have a scope for some model."""
        principal = self.find(credentials)
        self.check(principal, scope, credentials)
        return principal

    def check(self, principal: Principal, scope: Scope, credentials: Credentials) -> None:
        """Refuses a caller that has a scope for no model at all, before its request is parsed."""
        granted = any(granted == scope for granted, _ in principal.grants)
        if not granted and not self._administers(principal, scope, credentials):
            raise self._refusal(principal, scope, None, credentials)

    def enter(self, principal: Principal, scope: Scope, model: str, credentials: Credentials) -> Ticket:
        """Admits a request to a model, or to the server as a whole; the ticket is released when it is answered."""
        try:
            return self._enter(principal, scope, model, credentials)
        except OverloadedError:
            self.refused(model)
            raise

    def _enter(self, principal: Principal, scope: Scope, model: str, credentials: Credentials) -> Ticket:
        if principal.may(scope, model) or self._administers(principal, scope, credentials):
            return Ticket(principal.name, principal.quota)
        raise self._refusal(principal, scope, model, credentials)

    def admit(self, credentials: Credentials, scope: Scope, model: str = "") -> Ticket:
        """Does all of it at once, and counts nothing that is refused."""
        return self._enter(self.identify(credentials, scope), scope, model, credentials)

    def permit(self, credentials: Credentials, model: str, rows: int) -> Ticket | None:
        """Admits a prediction of the native core, on any thread; None where the general path is to refuse it."""
        try:
            ticket = self.admit(credentials, "predict", model)
        except ModelyardError:
            return None
        ticket.charge(rows)
        return ticket

    def find(self, credentials: Credentials) -> Principal:
        """Returns the principal of a caller; a key or token wins over a certificate."""
        known = self._known
        if known is None:
            return _ANYBODY
        rules = known.rules
        token = _bearer(credentials)
        if token is not None:
            principal = rules.of_key(token)
            if principal is None and known.tokens is not None and token.count(".") == 2:
                principal = rules.of_claims(known.tokens.claims(token))
                if principal is None:
                    raise UnauthenticatedError("The web token is valid, and no principal of --access_file fits it.")
            if principal is None:
                raise UnauthenticatedError("The key is unknown: it was never valid here, or was taken back.")
            return principal
        if credentials.certificate is not None and rules.by_certificate:
            try:
                subject = subject_of(credentials.certificate)
            except ValueError as exc:
                raise UnauthenticatedError("The client certificate's subject cannot be read.") from exc
            # Without a principal of its own, a certificate is what lets its bearer connect, and no more.
            return rules.by_certificate.get(subject, rules.anonymous)
        return rules.anonymous

    def administered(self, credentials: Credentials) -> Callable[[str], bool]:
        """Tells of each model whether a caller may administer it."""
        principal = self.find(credentials)
        return lambda model: principal.may("admin", model) or self._administers(principal, "admin", credentials)

    def _administers(self, principal: Principal, scope: Scope, credentials: Credentials) -> bool:
        """Whether a caller without credentials may administer."""
        if scope != "admin" or principal.name:
            return False
        if credentials.host == UNIX_SOCKET and not self._unix_socket:
            return False
        return self._insecure_admin == "anywhere" or (self._insecure_admin == "loopback" and credentials.is_local)

    def _refusal(
        self, principal: Principal, scope: Scope, model: str | None, credentials: Credentials
    ) -> PermissionDeniedError | UnauthenticatedError:
        if principal.name:
            what = "" if model is None else f" for model {model!r}" if model else " for the server as a whole"
            return PermissionDeniedError(f"{principal.name!r} has no scope {scope!r}{what}.")
        if self._known is not None:
            return UnauthenticatedError(
                f"This needs credentials with the scope {scope!r}: a bearer token, an x-api-key, or a client "
                "certificate."
            )
        whence = "a caller that may be elsewhere" if credentials.host is None else credentials.host
        return PermissionDeniedError(
            f"Administration from {whence} is refused: it needs credentials with the scope 'admin'. Start the server "
            "with --access_file, or with --insecure_admin=loopback where every user of this machine may change what it "
            "serves."
        )

    def look(self) -> None:
        """Reads the file where it has changed; rules that cannot be used are logged, and those in force stay."""
        if self._file is not None:
            with self._complaints.about("access stays as it was"):
                self._load(self._file)

    def look_at_tokens(self) -> None:
        """Fetches the keys of web tokens where it is time; those in force stay where that fails, which is logged."""
        known = self._known
        if known is not None and known.tokens is not None:
            with self._complaints.about("the keys of web tokens stay as they were"):
                if known.tokens.refresh():
                    _LOG.info("%s: the keys of web tokens have changed", self._file)

    def _load(self, file: Path) -> None:
        before = self._known
        try:
            content = file.read_bytes()
        except OSError as exc:
            raise ConfigurationError(f"--access_file={file} cannot be read: {exc}.") from exc
        if before is not None and content == self._content:
            return
        rules = read_rules(file, content, None if before is None else before.rules)
        tokens = None if before is None else before.tokens
        if rules.jwt is None:
            tokens = None
        elif tokens is None or tokens.options != rules.jwt:
            tokens = Tokens(rules.jwt)
        self._known = _Known(rules=rules, tokens=tokens)
        self._content = content
        _LOG.info("%s: %d principals", file, len([each for each in rules.principals if each.name]))


def _bearer(credentials: Credentials) -> str | None:
    if credentials.key is not None:
        return credentials.key
    header = credentials.authorization
    if header is None:
        return None
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        # Browsers ask people for a name and a password: the password is the key, and the name is whatever they like.
        with contextlib.suppress(ValueError):
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
    raise UnauthenticatedError(
        "The header field authorization cannot be read; expected Bearer with a key or a web token, or Basic with that "
        "as the password."
    )
