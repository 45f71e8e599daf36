"""Who is who, and who may do what, with no transport in it."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from modelyard.errors import ConfigurationError, OverloadedError, PermissionDeniedError, UnauthenticatedError
from modelyard.serving.access import UNIX_SOCKET, Access, Credentials
from modelyard.serving.access._principals import read_rules
from modelyard.serving.transports.grpc import peer_host

KEY = "myd_one"
HASH = f"sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"
ENTRY = f'[[principal]]\nname = "one"\nkeys = ["{HASH}"]\n'


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "access.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", UNIX_SOCKET])
def test_this_machine_may_administer_where_it_is_told_so(host: str) -> None:
    with pytest.raises(PermissionDeniedError, match="--access_file"):
        Access().admit(Credentials(host=host), "admin")
    access = Access(insecure_admin="loopback", unix_socket=True)
    assert access.admit(Credentials(host=host), "admin").principal == ""


def test_nobody_comes_by_a_socket_that_the_server_does_not_have() -> None:
    with pytest.raises(PermissionDeniedError, match="from unix: is refused"):
        Access(insecure_admin="loopback").admit(Credentials(host=UNIX_SOCKET), "admin")


@pytest.mark.parametrize(
    "host",
    [None, "192.0.2.2", "10.0.0.1", "0.0.0.0", "::", "fd00::2", "fe80::1%eth0", "::ffff:192.0.2.2", "localhost", ""],
)
def test_others_may_not(host: str | None) -> None:
    """Nor somebody whose address the transport does not know, as after an early reset."""
    with pytest.raises(PermissionDeniedError, match="is refused"):
        Access(insecure_admin="loopback").admit(Credentials(host=host), "admin")
    assert Access(insecure_admin="anywhere").admit(Credentials(host=host), "admin").principal == ""


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:127.0.0.1:50000", "127.0.0.1"),
        ("ipv6:[::1]:50000", "::1"),
        ("ipv6:%5B::1%5D:50000", "::1"),
        ("unix:", UNIX_SOCKET),
        ("unix:/run/grpc.sock", UNIX_SOCKET),
        ("vsock:3:50000", None),
        ("ipv4:", None),
        ("unknown", None),
        ("", None),
    ],
)
def test_grpc_s_names_of_peers(peer: str, host: str | None) -> None:
    assert peer_host(peer) == host


def test_without_a_file_everything_else_is_open() -> None:
    access = Access()
    assert not access.guarded
    for scope in ("predict", "metadata", "metrics"):
        access.admit(Credentials(authorization="Basic nonsense"), scope, "any")
    assert access.permit(Credentials(), "any", rows=3) is not None


def test_credentials_go_before_the_place_that_somebody_calls_from(tmp_path: Path) -> None:
    access = Access(write(tmp_path, ENTRY + 'scopes = ["predict"]'), insecure_admin="loopback")
    assert access.admit(Credentials(host="127.0.0.1"), "admin").principal == ""
    with pytest.raises(PermissionDeniedError, match="'one' has no scope 'admin'"):
        access.admit(Credentials(key=KEY, host="127.0.0.1"), "admin")
    with pytest.raises(UnauthenticatedError, match="cannot be read; expected Bearer"):
        access.admit(Credentials(authorization="Basic !", host="127.0.0.1"), "admin")


def test_browsers_show_a_key_as_a_password(tmp_path: Path) -> None:
    access = Access(write(tmp_path, ENTRY + 'scopes = ["predict"]'))
    shown = base64.b64encode(f"anybody:{KEY}".encode()).decode()
    assert access.admit(Credentials(authorization=f"Basic {shown}"), "predict").principal == "one"


def test_anonymous_callers_have_the_scopes_that_the_file_gives_them(tmp_path: Path) -> None:
    access = Access(write(tmp_path, 'anonymous = ["metrics", "predict:public-*"]'))
    assert access.guarded
    access.admit(Credentials(), "metrics")
    access.admit(Credentials(), "predict", "public-a")
    assert access.permit(Credentials(), "public-a", rows=1) is not None
    assert access.permit(Credentials(), "private", rows=1) is None
    with pytest.raises(UnauthenticatedError, match="scope 'predict': a bearer token, an x-api-key, or a client"):
        access.admit(Credentials(), "predict", "private")


def test_secrets_are_in_no_text() -> None:
    shown = Credentials(authorization="Bearer secret", key="secret", certificate=b"secret", host="::1")
    assert "secret" not in repr(shown)


def test_what_a_ticket_counts(tmp_path: Path) -> None:
    text = ENTRY + 'scopes = ["predict"]\nrequests_per_second = 3\nmax_in_flight = 2\nrows_per_second = 10'
    access = Access(file := write(tmp_path, text))
    shown = Credentials(authorization=f"Bearer {KEY}")
    first = access.permit(shown, "m", rows=1)
    second = access.permit(shown, "m", rows=1)
    assert first is not None and second is not None
    assert (first.principal, access.permit(shown, "m", rows=1)) == ("one", None)
    with pytest.raises(OverloadedError, match="'one' is used up: max_in_flight = 2") as caught:
        access.admit(shown, "predict", "m")
    assert caught.value.retry_after_s
    # A quota that did not change is not forgotten when the file does.
    file.write_text(text + '\n[[principal]]\nname = "two"\nkeys = ["sha256:' + "0" * 64 + '"]\n')
    access.look()
    assert access.permit(shown, "m", rows=1) is None
    # What is handed over is counted where it is handed over to.
    second.undo()
    second.release()
    with access.admit(shown, "predict", "m") as ticket:
        ticket.charge(30)
    first.release()
    with pytest.raises(OverloadedError, match="rows_per_second = 10"):
        access.admit(shown, "predict", "m")


BAD: list[tuple[str, str]] = [
    ("[[principal", "cannot be read as TOML"),
    ("principals = 1", "the file has 'principals'; expected some of principal, jwt, anonymous"),
    ("principal = 1", "principal: expected a list of tables"),
    ('[[principal]]\nscopes = ["predict"]', "a principal's name is None"),
    (ENTRY + ENTRY, "name is 'one'; expected a text that no other principal has"),
    (ENTRY + 'scopes = "predict"', "scopes of principal 'one': expected a list of texts"),
    (ENTRY + 'scopes = ["predict:"]', "has the scope 'predict:'; expected one of predict, metadata, metrics, admin"),
    (ENTRY + "max_in_flight = 1.5", "has max_in_flight = 1.5; expected a number"),
    (ENTRY + "rows_per_second = -1", "has rows_per_second = -1; expected a number"),
    (ENTRY + "requests_per_second = inf", "has requests_per_second = inf; expected a number"),
    (ENTRY + ENTRY.replace('"one"', '"two"'), "a key of principal 'two' is another principal's, too"),
    ('[[principal]]\nname = "a"\ncertificates = ["ci"]', "has the certificate 'ci'; expected a subject such as CN=ci"),
    ('[[principal]]\nname = "a"\nclaims = {sub = "x"}', "has claims, and there is no \\[jwt\\]"),
    ('[[principal]]\nname = "a"\nclaims = "x"', "principal 'a' has str; expected a table"),
    *(
        (
            f'[[principal]]\nname = "a"\nclaims = {{groups = {value}}}',
            "'a' has the claim groups = .*; expected one text",
        )
        for value in ('["ml"]', "[]", "{a = 1}", "2020-01-01", "2020-01-01T00:00:00Z", "12:00:00", "nan")
    ),
    ("[jwt]\nissuer = 'i'", "\\[jwt\\] has jwks = None; expected a text"),
    ("[jwt]\njwks='http://a/b'\nissuer='i'\naudience='a'", "keys could be changed on the way"),
    (
        "[jwt]\njwks='a'\nissuer='i'\naudience='a'\nalgorithms=['HS256']",
        "the algorithm 'HS256'; expected some of",
    ),
    ("[jwt]\njwks='absent.json'\nissuer='i'\naudience='a'", "The keys of web tokens in .*absent.json cannot be used"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_files_that_make_no_sense(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Access(write(tmp_path, text))


def test_a_key_in_place_of_its_hash_is_not_repeated(tmp_path: Path) -> None:
    file = write(tmp_path, f'[[principal]]\nname = "one"\nkeys = ["{KEY}"]\n')
    with pytest.raises(ConfigurationError, match="is not sha256: and 64 hexadecimal digits") as caught:
        Access(file)
    assert KEY not in str(caught.value)
    with pytest.raises(ConfigurationError, match="absent.toml cannot be read"):
        Access(tmp_path / "absent.toml")


@pytest.mark.parametrize("line", ["keys = []\n", ""])
def test_the_last_key_of_a_principal_is_taken_back(tmp_path: Path, line: str) -> None:
    file = write(tmp_path, ENTRY + 'scopes = ["predict"]\n')
    access, shown = Access(file), Credentials(key=KEY)
    assert access.admit(shown, "predict", "m").principal == "one"
    file.write_text(file.read_text().replace(f'keys = ["{HASH}"]\n', line))
    access.look()
    for each in (access, Access(file)):
        with pytest.raises(UnauthenticatedError, match="The key is unknown"):
            each.admit(shown, "predict", "m")


def test_certificates(tmp_path: Path) -> None:
    access = Access(write(tmp_path, '[[principal]]\nname = "a"\ncertificates = ["CN=ci,O=Example"]\n'))
    with pytest.raises(UnauthenticatedError, match="certificate's subject cannot be read"):
        access.admit(Credentials(certificate=b"none"), "predict", "m")


def test_claims_of_tokens(tmp_path: Path) -> None:
    text = (
        '[[principal]]\nname = "a"\nclaims = {sub = "s", groups = "g"}\n'
        '[[principal]]\nname = "b"\nclaims = {level = 3}\n'
        '[[principal]]\nname = "c"\nclaims = {admin = true}\n'
        '[[principal]]\nname = "d"\nclaims = {level = 1}\n'
        "[jwt]\njwks = 'k'\nissuer = 'i'\naudience = 'a'\n"
    )
    file = write(tmp_path, text)
    rules = read_rules(file, file.read_bytes())
    found: list[tuple[dict[str, Any], str | None]] = [
        ({"sub": "s", "groups": ["x", "g"]}, "a"),
        ({"sub": "s"}, None),
        ({"sub": "ss", "groups": ["g"]}, None),
        ({"level": 3}, "b"),
        ({"level": "3"}, None),
        ({"level": [2, 3.0]}, "b"),
        ({"admin": True}, "c"),
        ({"admin": [False, True]}, "c"),
        ({"admin": 1}, None),
        ({"admin": [1]}, None),
        ({"admin": "true"}, None),
        ({"level": True}, None),
        ({}, None),
    ]
    for claims, name in found:
        principal = rules.of_claims(claims)
        assert (None if principal is None else principal.name) == name, claims
