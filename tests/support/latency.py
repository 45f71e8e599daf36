"""How long one model takes while another is busy."""

from __future__ import annotations

import http.client
import time

from tests.support.server import RunningServer


def latencies(server: RunningServer, count: int) -> list[float]:
    """Seconds of one request after the other to the model ``fast``, which is y = 2 x + 1."""
    connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=60)
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        connection.request("POST", "/v1/models/fast:predict", b'{"instances": [2.0]}')
        response = connection.getresponse()
        assert (response.status, b"5.0" in response.read()) == (200, True)
        seconds.append(time.perf_counter() - started)
    connection.close()
    return seconds
