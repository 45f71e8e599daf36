"""A network whose packets come late, out of order and twice: a tun device that sends them back itself.

The kernel routes packets to an address of nobody's into the device. Each comes back with its two addresses exchanged,
as if that address had sent it: whoever connects there is connected with this machine. Checksums stay right, for they
are sums of both.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
from pathlib import Path

DEVICE = Path("/dev/net/tun")
#: Connections to it come back to this machine.
MIRROR = "10.9.0.2"
_HERE, _NAME = "10.9.0.1/24", "mirror0"
#: linux/if_tun.h: the call that names a device, and a device of IP packets without a head of their own.
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_SOURCE, _TARGET = slice(12, 16), slice(16, 20)
_MTU = 65536


class Mirror:
    """Sends packets back as long as it is entered.

    Args:
        delay_s: Each packet is late by so many seconds at most, drawn for each.
        doubled: Of so many packets, in 1, there is a second one.
        seed: Of what is drawn.
    """

    def __init__(self, *, delay_s: float, doubled: float, seed: int) -> None:
        self._delay_s, self._doubled, self._rng = delay_s, doubled, random.Random(seed)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._pass_on)
        #: Packets that came, and how many of those that went had been overtaken.
        self.packets = self.overtaken = 0

    def __enter__(self) -> Mirror:
        self._device = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(self._device, _TUNSETIFF, struct.pack("16sH14x", _NAME.encode(), _IFF_TUN | _IFF_NO_PI))
        for command in (f"addr add {_HERE} dev {_NAME}", f"link set {_NAME} up"):
            subprocess.run(["ip", *command.split()], check=True, capture_output=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()
        os.close(self._device)

    def _pass_on(self) -> None:
        waiting: list[tuple[float, int, bytes]] = []
        newest = 0
        while not self._ended.is_set():
            pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.1
            if select.select([self._device], [], [], min(pause, 0.1))[0]:
                packet = bytearray(os.read(self._device, _MTU))
                packet[_SOURCE], packet[_TARGET] = packet[_TARGET], packet[_SOURCE]
                self.packets += 1
                for _ in range(1 + (self._rng.random() < self._doubled)):
                    at = time.monotonic() + self._rng.uniform(0.0, self._delay_s)
                    heapq.heappush(waiting, (at, self.packets, bytes(packet)))
            while waiting and waiting[0][0] <= time.monotonic():
                _, number, out = heapq.heappop(waiting)
                self.overtaken += number < newest
                newest = max(newest, number)
                os.write(self._device, out)
