"""A model that is flooded, or slow, delays no other: over sockets, by the 99th percentile of its neighbour."""

from __future__ import annotations

import http.client
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tests.support.latency import latencies
from tests.support.models import publish_affine, publish_slow
from tests.support.server import RunningServer, serve

REQUESTS = 40


def test_a_flooded_model_delays_no_other(tmp_path: Path) -> None:
    publish_affine(tmp_path / "models" / "fast", slope=2.0, intercept=1.0)
    publish_slow(tmp_path / "models" / "slow", loops=400)
    over, idle = threading.Event(), threading.Event()
    flooding = threading.Event()

    def flood(server: RunningServer) -> list[float]:
        connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=60)
        seconds = []
        while not over.is_set():
            if not flooding.wait(0.1):
                continue
            started = time.perf_counter()
            connection.request("POST", "/v1/models/slow:predict", b'{"instances": [2.0]}')
            response = connection.getresponse()
            assert (response.status, b"2.0" in response.read()) == (200, True)
            seconds.append(time.perf_counter() - started)
        connection.close()
        return seconds

    # One batch of the slow model at a time: where both had the same threads, every fast request would wait for one.
    flags = [f"--model_repository={tmp_path / 'models'}", "--tensorflow_session_parallelism=1"]
    with serve(None, model="fast", log_dir=tmp_path, flags=flags) as server, ThreadPoolExecutor(8) as pool:
        server.wait_until(lambda: '"AVAILABLE"' in server.get("/v1/models/slow")[1], 60, "the slow model")
        latencies(server, REQUESTS)
        callers = [pool.submit(flood, server) for _ in range(8)]
        found: dict[bool, list[float]] = {False: [], True: []}
        try:
            # In turns, so that whatever else this machine does is in both.
            for flooded in (False, True, False, True):
                (flooding.set if flooded else flooding.clear)()
                idle.wait(0.5)
                found[flooded] += latencies(server, REQUESTS)
        finally:
            over.set()
        slow_s = min(each for caller in callers for each in caller.result())
        alone, beside = (float(np.quantile(found[flooded], 0.99)) for flooded in (False, True))
        # On a machine with few cores the slow model's arithmetic takes its share; its queue does not.
        assert slow_s > 0.05
        assert beside <= 2 * alone + slow_s / 4, (alone, beside, slow_s)
