"""Devices by name."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from modelyard.errors import ConfigurationError


def known_devices() -> list[str]:
    """The devices that there are, such as ``CPU:0`` and ``GPU:0``."""
    return [_short(device.name) for device in tf.config.list_logical_devices()]


def check_devices(names: Sequence[str]) -> None:
    """Makes sure that there are such devices."""
    known = known_devices()
    for name in names:
        if _short(name) not in known:
            raise ConfigurationError(f"There is no device {name!r}; expected one of {', '.join(known)}.")


def _short(device: str) -> str:
    """``CPU:0`` out of ``/job:localhost/replica:0/task:0/device:CPU:0``, ``/device:CPU:0`` or ``/CPU:0``."""
    return device.rpartition("device:")[2].removeprefix("/").upper()
