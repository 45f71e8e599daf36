"""Who may change the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelyard.errors import PermissionDeniedError
from modelyard.serving import LoadOptions, ModelConfig, ModelManager, Servable, WatchOptions, load_servable
from modelyard.serving.handlers.grpc import peer_host
from modelyard.serving.repository import Admin


def load(config: ModelConfig, version: int, path: Path) -> Servable:
    return load_servable(config.name, version, path, LoadOptions())


def admin(*, allow_remote: bool) -> Admin:
    manager = ModelManager((), load, WatchOptions())
    return Admin(manager, allow_remote=allow_remote)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", None])
def test_this_host_may(host: str | None) -> None:
    admin(allow_remote=False).check_peer(host)


@pytest.mark.parametrize(
    "host", ["192.0.2.2", "10.0.0.1", "0.0.0.0", "::", "fd00::2", "fe80::1%eth0", "::ffff:192.0.2.2", "localhost", ""]
)
def test_others_may_not_unless_they_are_allowed(host: str) -> None:
    with pytest.raises(PermissionDeniedError, match="--allow_remote_admin"):
        admin(allow_remote=False).check_peer(host)
    admin(allow_remote=True).check_peer(host)


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:127.0.0.1:50000", "127.0.0.1"),
        ("ipv6:[::1]:50000", "::1"),
        ("ipv6:%5B::1%5D:50000", "::1"),
        ("unix:", None),
        ("unix:/run/grpc.sock", None),
        ("vsock:3:50000", "vsock:3:50000"),
    ],
)
def test_grpc_s_names_of_peers(peer: str, host: str | None) -> None:
    assert peer_host(peer) == host
