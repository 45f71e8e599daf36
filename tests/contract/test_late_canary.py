"""A canary that answers nobody in time is rolled back: its requests are as late as their deadlines, and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from modelyard.clients import ClientOptions, RetryOptions, connect
from modelyard.errors import DeadlineExceededError, OverloadedError
from tests.support.metrics import monitoring_flag, scrape, value
from tests.support.models import publish_affine, publish_slow
from tests.support.rollout import row
from tests.support.server import RunningServer, serve

TIMEOUT_S = 0.25
BODY = b'{"instances": [1.0]}'
#: What the second version takes is many times that.
LOOPS = 5000
RULE = "split { version: 1 weight: 1 } split { version: 2 weight: 1 } rollback { %s min_samples: 5 }"
#: What a client sees, by the status that the server counts. A client whose clock is a moment earlier than the server's
#: hangs up on a call that is then cancelled, or late.
SEEN = {"OK": "OK", "DEADLINE_EXCEEDED": "late", "CANCELLED": "late", "RESOURCE_EXHAUSTED": "refused"}


def by_rest(server: RunningServer) -> str:
    status, text = server.post("/v1/models/m:predict", BODY)
    # What nobody waits for any more is still computed: meanwhile others may be refused.
    seen = {200: "OK", 504: "late", 429: "refused"}
    assert status in seen, text
    return seen[status]


def by_grpc(server: RunningServer) -> str:
    once = ClientOptions(retry=RetryOptions(attempts=1))
    with connect(f"grpc://{server.grpc_address}", once) as client:
        client.status("m")
        try:
            client.predict("m", {"x": np.ones(1, np.float32)}, timeout_s=TIMEOUT_S)
        except DeadlineExceededError:
            return "late"
        except OverloadedError:
            return "refused"
    return "OK"


# Both limits are judged by what is counted below, whoever called.
@pytest.mark.parametrize(("call", "limit"), [(by_rest, "max_p99_ms: 50"), (by_grpc, "max_error_rate: 0.1")])
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

        def counted() -> dict[tuple[str, str], int]:
            series = scrape(server)
            labels = [{"model": "m", "target": target, "status": status} for target in ("1", "2") for status in SEEN]
            return {
                (each["target"], each["status"]): int(value(series, ":modelyard:serving:traffic_requests", **each))
                for each in labels
            }

        def told() -> Counter[str]:
            found: Counter[str] = Counter()
            for (_, status), count in counted().items():
                found[SEEN[status]] += count
            return +found

        server.wait_until(lambda: row(server, "m", "1")["version"] and row(server, "m", "2")["version"], 60, "loaded")
        # Python answers the first request of each version, and has the core answer the next ones.
        assert [server.post(f"/v1/models/m/versions/{n}:predict", BODY)[0] for n in (1, 2)] == [200, 504]
        seen: Counter[str] = Counter()

        def asked_until_rolled_back() -> bool:
            seen[call(server)] += 1
            return bool(row(server, "m", "2")["state"] == "rolled back")

        server.wait_until(asked_until_rolled_back, 60, "rolled back")
        assert limit in row(server, "m", "2")["reason"]
        # Each request once. A client knows before the server does.
        server.wait_until(lambda: told() == seen, 10, f"counted as {seen}")
        stable, canary = row(server, "m", "1"), row(server, "m", "2")
        assert canary["failed"] == canary["requests"] == counted()["2", "DEADLINE_EXCEEDED"] >= 5
        assert canary["p99_ms"] >= TIMEOUT_S * 1e3 / 1.8
        assert stable["failed"] == counted()["1", "DEADLINE_EXCEEDED"]
        assert stable["state"] == "serving"
