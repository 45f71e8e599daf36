"""A canary that answers nobody in time is rolled back: its requests are as late as their deadlines, and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from modelyard.clients import connect
from modelyard.errors import DeadlineExceededError
from tests.support.metrics import monitoring_flag, scrape, value
from tests.support.models import publish_affine, publish_slow
from tests.support.rollout import row
from tests.support.server import RunningServer, serve

TIMEOUT_S = 0.1
BODY = b'{"instances": [1.0]}'
#: What the second version takes is many times that.
LOOPS = 2000
RULE = "split { version: 1 weight: 1 } split { version: 2 weight: 1 } rollback { %s min_samples: 5 }"


def by_rest(server: RunningServer) -> str:
    status, text = server.post("/v1/models/m:predict", BODY)
    assert status in (200, 504), text
    return "OK" if status == 200 else "late"


def by_grpc(server: RunningServer) -> str:
    with connect(f"grpc://{server.grpc_address}") as client:
        try:
            client.predict("m", {"x": np.ones(1, np.float32)}, timeout_s=TIMEOUT_S)
        except DeadlineExceededError:
            return "late"
    return "OK"


@pytest.mark.parametrize("limit", ["max_p99_ms: 50", "max_error_rate: 0.1"])
@pytest.mark.parametrize("call", [by_rest, by_grpc])
def test_a_canary_that_is_late_is_rolled_back(call: Callable[[RunningServer], str], limit: str, tmp_path: Path) -> None:
    publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    publish_slow(tmp_path / "m", loops=LOOPS)
    traffic = tmp_path / "traffic.config"
    traffic.write_text(f'model {{ name: "m" {RULE % limit} }}')
    flags = (
        f"--version_traffic_file={traffic}",
        f"--rest_api_timeout_in_ms={TIMEOUT_S * 1e3:.0f}",
        monitoring_flag(tmp_path),
    )
    with serve(tmp_path / "m", model="m", log_dir=tmp_path, flags=flags) as server:
        server.wait_until(lambda: row(server, "m", "1")["version"] and row(server, "m", "2")["version"], 60, "loaded")
        # Python answers the first request of each version, and has the core answer the next ones.
        assert [server.post(f"/v1/models/m/versions/{n}:predict", BODY)[0] for n in (1, 2)] == [200, 504]
        seen: Counter[str] = Counter()

        def asked_until_rolled_back() -> bool:
            seen[call(server)] += 1
            return bool(row(server, "m", "2")["state"] == "rolled back")

        server.wait_until(asked_until_rolled_back, 60, "rolled back")
        assert limit in row(server, "m", "2")["reason"]
        # A client knows before the server does.
        server.wait_until(lambda: row(server, "m", "2")["failed"] == seen["late"], 10, "counted")
        found = row(server, "m", "2")
        assert found["requests"] == seen["late"] >= 5
        assert found["p99_ms"] >= TIMEOUT_S * 1e3 / 1.8
        series, labels = scrape(server), {"model": "m", "target": "2", "status": "DEADLINE_EXCEEDED"}
        assert value(series, ":modelyard:serving:traffic_requests", **labels) == seen["late"]
        assert row(server, "m", "1")["failed"] == 0
