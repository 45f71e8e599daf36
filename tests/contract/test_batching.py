"""Batching over real sockets: the metrics say what was computed together."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.admin import ask
from tests.support.metrics import monitoring_flag, scrape, value
from tests.support.models import publish_affine, publish_slow
from tests.support.server import RunningServer, serve

PREFIX = ":tensorflow:serving:batching_session:"
REQUESTS = 24


def flags_for(folder: Path, parameters: str, *more: str) -> list[str]:
    file = folder / "batching.config"
    file.write_text(parameters)
    return ["--enable_batching", f"--batching_parameters_file={file}", monitoring_flag(folder), *more]


def ask_all(server: RunningServer, name: str) -> list[object]:
    with ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(lambda number: ask(server, name, x=float(number)), range(REQUESTS)))


def test_concurrent_requests_are_computed_together(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=2.0, intercept=1.0)
    parameters = """
        max_batch_size { value: 8 } batch_timeout_micros { value: 1000000 } num_batch_threads { value: 2 }
        thread_pool_name { value: "shared" } allowed_batch_sizes: 4 allowed_batch_sizes: 8
        max_enqueued_batches { value: 100 }
    """
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags_for(tmp_path, parameters)) as server:
        assert ask_all(server, "affine") == [2.0 * number + 1.0 for number in range(REQUESTS)]
        page = scrape(server)
        runs = value(page, f"{PREFIX}wrapped_run_count")
        assert REQUESTS / 8 <= runs < REQUESTS / 2
        assert value(page, f"{PREFIX}input_batch_size_count") == REQUESTS
        assert value(page, f"{PREFIX}queuing_latency_count", thread_pool_name="shared") == REQUESTS
        # Every batch has an allowed size, and what was added is accounted for.
        assert value(page, f"{PREFIX}processed_batch_size_count") == runs
        padded = value(page, f"{PREFIX}processed_batch_size_sum") - REQUESTS
        assert padded == sum(value(page, f"{PREFIX}padding_size_sum", execution_batch_size=size) for size in ("4", "8"))
        assert value(page, f"{PREFIX}processed_batch_size_bucket", le="2") == 0
        # So do Triton's statistics: an execution is a batch, with what pads it.
        (row,) = json.loads(server.get("/v2/models/affine/stats")[1])["model_stats"]
        assert (row["inference_count"], row["execution_count"]) == (REQUESTS, runs)
        sizes = {batch["batch_size"]: batch["compute_infer"]["count"] for batch in row["batch_stats"]}
        assert set(sizes) <= {4, 8}
        assert sum(size * count for size, count in sizes.items()) == REQUESTS + padded

        status, text = server.post("/v1/models/affine:predict", json.dumps({"instances": [1.0] * 9}).encode())
        assert (status, "Task size 9 is larger than maximum input batch size 8" in text) == (400, True)
        # A bad request beside good ones is refused alone.
        bodies = [b'{"instances": [1.0]}', b'{"instances": ["a"]}', b'{"instances": [2.0]}']
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda body: server.post("/v1/models/affine:predict", body)[0], bodies))
        assert answers == [200, 400, 200]


def test_large_requests_are_split(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=2.0, intercept=1.0)
    parameters = """
        max_batch_size { value: 100 } enable_large_batch_splitting { value: true }
        max_execution_batch_size { value: 4 }
    """
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags_for(tmp_path, parameters)) as server:
        status, text = server.post("/v1/models/affine:predict", json.dumps({"instances": [*range(10)]}).encode())
        assert (status, json.loads(text)["predictions"]) == (200, [2.0 * number + 1.0 for number in range(10)])
        page = scrape(server)
        assert value(page, f"{PREFIX}wrapped_run_count") == 3
        assert value(page, f"{PREFIX}processed_batch_size_sum") == 10


def test_a_full_queue_is_told(tmp_path: Path) -> None:
    publish_slow(tmp_path / "slow", loops=300)
    parameters = "max_batch_size { value: 1 } max_enqueued_batches { value: 1 } num_batch_threads { value: 1 }"
    with serve(tmp_path / "slow", model="slow", log_dir=tmp_path, flags=flags_for(tmp_path, parameters)) as server:
        answers = ask_all(server, "slow")
        refused = [answer for answer in answers if isinstance(answer, tuple)]
        assert 0 < len(refused) < REQUESTS
        assert {status for status, _ in refused} == {503}
        assert all("batch scheduling queue to which this task was submitted is full" in text for _, text in refused)
        assert ask(server, "slow", x=3.0) == 3.0


def test_a_model_s_own_parameters(tmp_path: Path) -> None:
    own = publish_affine(tmp_path / "affine", slope=2.0, intercept=0.0)
    (own.path / "batching_params.pbtxt").write_text(
        "max_batch_size { value: 2 } allowed_batch_sizes: 2 batch_timeout_micros { value: 1000 }"
    )
    flag = "--enable_per_model_batching_parameters"
    flags = flags_for(tmp_path, "max_batch_size { value: 7 }", flag)
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags) as server:
        assert ask(server, "affine", x=3.0) == 6.0
        page = scrape(server)
        assert value(page, f"{PREFIX}padding_size_sum", execution_batch_size="2") == 1
        status, text = server.post("/v1/models/affine:predict", b'{"instances": [1.0, 2.0, 3.0]}')
        assert (status, "maximum input batch size 2" in text) == (400, True)
        # Without such a file a version is not batched at all; with a bad one it is refused.
        publish_affine(tmp_path / "affine", slope=3.0, intercept=0.0)
        server.wait_until(lambda: ask(server, "affine", x=3.0) == 9.0, 30, "version 2")
        runs = value(scrape(server), f"{PREFIX}wrapped_run_count")
        assert ask(server, "affine", x=3.0) == 9.0
        assert value(scrape(server), f"{PREFIX}wrapped_run_count") == runs
        bad = publish_affine(tmp_path / "elsewhere", slope=4.0, intercept=0.0)
        (bad.path / "batching_params.pbtxt").write_text("max_batch_size { value: 0 }")
        bad.path.rename(tmp_path / "affine" / "3")
        server.wait_until(lambda: '"END"' in server.get("/v1/models/affine/versions/3")[1], 30, "refusing version 3")
        assert "max_batch_size is 0" in server.get("/v1/models/affine/versions/3")[1]
        assert ask(server, "affine", x=3.0) == 9.0
