"""Network faults in a network namespace of its own, where netfilter loses packets and cuts servers off.

A kernel without ``netem`` cannot delay packets: a proxy delays what goes through it, and a tun device exchanges them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.torture.cases import Fault, Result, Scratch, case, expect
from benchmarks.torture.packets import DEVICE, MIRROR, Mirror
from benchmarks.torture.processes import LATE_S
from benchmarks.torture.repository import SEED
from modelyard.clients import Client, ClientOptions, ModelConfig, RetryOptions, connect
from modelyard.errors import ModelyardError, UnavailableError
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve

#: Requests that servers get, in those that clients make.
MAX_LOAD = 1.2
DELAY_S = 0.1


def _isolated(function: str, scratch: Scratch) -> Result:
    """Runs a function of this module in a network namespace, and returns what it printed last."""
    if shutil.which("iptables") is None or os.geteuid() != 0:
        return Result(inputs=0, text="not run: it needs root and iptables")
    code = (
        "from benchmarks.torture import network; from pathlib import Path; "
        f"network.{function}(Path({str(scratch.folder)!r}), {scratch.transport!r}, {scratch.short})"
    )
    command = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    if done.returncode:
        raise Fault(done.stderr[-1500:])
    number, text = done.stdout.strip().splitlines()[-1].split(" ", 1)
    return Result(inputs=int(number), text=text)


def _iptables(*arguments: str) -> None:
    subprocess.run(["iptables", *arguments], check=True, capture_output=True)


def _predictions(server: RunningServer) -> int:
    """Predictions that a server has answered, by its access log: it is written a moment later."""
    seen, found = -1, 0
    while found != seen:
        time.sleep(0.5)
        seen, found = found, len(re.findall(r"path=\S*[pP]redict status=(OK|200) ", server.log_text()))
    return found


@contextlib.contextmanager
def _server(folder: Path, transport: str, name: str = "m") -> Iterator[RunningServer]:
    model = folder / name
    if not model.exists():
        publish_affine(model, slope=2.0, intercept=1.0)
    with serve(
        model, model="m", log_dir=folder, flags=[f"--transport={transport}", "--access_log=all", "--log_format=text"]
    ) as server:
        yield server


def _call(client: Client, x: float, timeout_s: float) -> bool:
    """Whether a call was answered; a wrong answer and one that is late are faults."""
    started = time.monotonic()
    try:
        answer = client.predict("m", {"x": [x]}, timeout_s=timeout_s)["y"].tolist()
        expect(answer == [2 * x + 1], f"{x} was answered by {answer}")
        return True
    except ModelyardError:
        return False
    finally:
        took = time.monotonic() - started
        expect(took < timeout_s + LATE_S, f"a call took {took:.1f} s, its deadline was {timeout_s} s")


@case("network", "5 % of all packets lost", own=True, short=False, transports=("native", "python"))
def loss(scratch: Scratch) -> Result:
    """TCP sends them again: no answer is wrong, deadlines are kept, no server gets much more than clients ask."""
    return _isolated("run_loss", scratch)


def run_loss(folder: Path, transport: str, short: bool) -> None:
    """The case of that name, within the namespace."""
    with _server(folder, transport) as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(url)) for url in (f"grpc://{server.grpc_address}", server.rest_url)]
        _iptables(*"-A INPUT -p tcp -m statistic --mode random --probability 0.05 -j DROP".split())
        count = 200 if short else 2000
        answered = sum(_call(clients[number % 2], float(number), 3.0) for number in range(count))
        _iptables("-F", "INPUT")
        made = _predictions(server)
    expect(answered >= 0.99 * count, f"{answered} of {count} were answered")
    expect(made <= MAX_LOAD * count, f"{count} calls became {made}")
    print(f"{count} {answered:,} of {count:,} answered within 3 s, by {made:,} computed")


@case("network", "packets late, out of order and twice", own=True, short=False, transports=("native", "python"))
def reordered(scratch: Scratch) -> Result:
    """Large tensors there and back, several calls at a time: every answer is right and in time."""
    if not DEVICE.exists():
        return Result(inputs=0, text=f"not run: it needs {DEVICE}")
    return _isolated("run_reordered", scratch)


def run_reordered(folder: Path, transport: str, short: bool) -> None:
    """The case of that name, within the namespace."""
    calls, rows = 20 if short else 500, 20_000

    def ask(client: Client, number: int) -> None:
        x = np.arange(number, number + rows, dtype=np.float32)
        answer = client.predict("m", {"x": x}, timeout_s=10.0)["y"]
        expect(np.array_equal(answer, 2 * x + 1), f"call {number} was answered by {answer}")

    with (
        _server(folder, transport) as server,
        Mirror(delay_s=0.02, doubled=0.05, seed=SEED) as mirror,
        contextlib.ExitStack() as stack,
        ThreadPoolExecutor(4) as pool,
    ):
        urls = (f"grpc://{MIRROR}:{server.grpc_port}", f"http://{MIRROR}:{server.rest_port}")
        clients = [stack.enter_context(connect(url)) for url in urls]
        list(pool.map(ask, clients * (calls // 2), range(calls)))
        made = _predictions(server)
    expect(mirror.overtaken > 0.1 * mirror.packets, f"{mirror.overtaken} of {mirror.packets} packets were overtaken")
    expect(made == calls, f"{calls} calls became {made}")
    print(f"{calls} none failed; {mirror.overtaken:,} of {mirror.packets:,} packets were overtaken")


@case("network", "a partition of 5 s between clients and one of two servers", own=True, short=False)
def partition(scratch: Scratch) -> Result:
    """Nothing comes back from one server, not even a refusal: clients go to the other, and come back."""
    return _isolated("run_partition", scratch)


def run_partition(folder: Path, transport: str, short: bool) -> None:
    """The case of that name, within the namespace."""
    with _server(folder, transport) as one, _server(folder, transport) as two, contextlib.ExitStack() as stack:
        retry = ClientOptions(retry=RetryOptions(attempts=3))
        pairs = ([f"grpc://{each.grpc_address}" for each in (one, two)], [each.rest_url for each in (one, two)])
        clients = [stack.enter_context(connect(urls, retry)) for urls in pairs]
        count = failed = before = 0
        begin = time.monotonic()
        cut = False
        while (now := time.monotonic() - begin) < 12:
            if not cut and now > 2:
                before = _predictions(one)
                for port in (one.grpc_port, one.rest_port):
                    _iptables("-A", "INPUT", "-p", "tcp", "--dport", str(port), "-j", "DROP")
                cut = True
            elif cut and now > 7:
                _iptables("-F", "INPUT")
            failed += not _call(clients[count % 2], float(count), 1.0)
            count += 1
            time.sleep(0.005)
        made = _predictions(one) + _predictions(two)
        after = _predictions(one) - before
    expect(after > 0, "the server that was cut off gets no calls any more")
    expect(made <= MAX_LOAD * count, f"{count} calls became {made}")
    expect(failed <= 0.02 * count + 10, f"{failed} of {count} failed")
    print(f"{count} {failed} of {count:,} calls failed, by their deadline; {made:,} computed")


@case("network", "100 ms of delay each way, and connections that are cut in the middle", own=True, short=False)
def delayed(scratch: Scratch) -> Result:
    """A proxy delays all bytes, and cuts every connection after a while: every answer is right, or an error in time."""
    count, cuts = scratch.count(300, 12), 0
    with _server(scratch.folder, scratch.transport) as server, contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(_Proxy(port)) for port in (server.grpc_port, server.rest_port)]
        urls = [f"{scheme}://127.0.0.1:{each.port}" for scheme, each in zip(("grpc", "http"), proxies, strict=True)]
        clients = [stack.enter_context(connect(url)) for url in urls]
        answered = 0
        for number in range(count):
            if number % 6 == 5:
                timer = threading.Timer(1.5 * DELAY_S, proxies[number % 2].cut)
                timer.start()
                cuts += 1
            answered += _call(clients[number % 2], float(number), 3.0)
        made = _predictions(server)
    expect(answered >= count - cuts, f"{count - answered} of {count} failed, {cuts} connections were cut")
    expect(made <= MAX_LOAD * count, f"{count} calls became {made}")
    return Result(inputs=count, text=f"{cuts} cut; {answered} answered, by {made} computed")


@case("network", "a reload whose answer is cut off", own=True)
def cut_reload(scratch: Scratch) -> Result:
    """The client says that it does not know, and sends no administrative action a second time."""
    with _server(scratch.folder, scratch.transport) as server, contextlib.ExitStack() as stack:
        proxy = stack.enter_context(_Proxy(server.grpc_port))
        client = stack.enter_context(connect(f"grpc://127.0.0.1:{proxy.port}", ClientOptions(retry=RetryOptions())))
        config, count = [ModelConfig(name="m", base_path=str(scratch.folder / "m"))], scratch.count(20, 3)
        cut = 0
        for _ in range(count):
            before, failed = server.log_text().count("ReloadConfig"), False
            threading.Timer(1.5 * DELAY_S, proxy.cut).start()
            try:
                client.reload_config(config, timeout_s=5)
            except UnavailableError:
                failed = True
            time.sleep(0.2)
            made = server.log_text().count("ReloadConfig") - before
            expect(made <= 1, f"one reload became {made}")
            cut += made and failed
    expect(cut, "of no reload that was made the answer was cut off")
    return Result(inputs=count, text=f"{cut} made, and none sent twice")


class _Proxy:
    """Passes bytes on after a delay, and cuts all connections when told."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> _Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Closes every connection, with what is on its way."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(65536):
                time.sleep(DELAY_S)
                target.sendall(data)
