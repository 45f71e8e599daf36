"""Prometheus' and Grafana's files, with a real Prometheus that scrapes a real server."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml

from modelyard.serving.metrics import FAMILIES
from modelyard.wire import PREDICTION_SERVICE, array_to_tensor, serving_pb2
from tests.deploy.conftest import DEPLOY, exposed_metrics, metrics_in
from tests.support.admin import TENSORFLOW, config_text, model_text
from tests.support.metrics import scrape, value
from tests.support.models import publish_affine
from tests.support.prometheus import Prometheus, prometheus, tool
from tests.support.server import RunningServer, serve

MONITORING = DEPLOY / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "grafana" / "dashboards" / "modelyard.json").read_text())
RULES = [rule for group in yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"] for rule in group["rules"]]
CONFIG = MONITORING / "monitoring.config"
_PANELS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
_EXPRESSIONS = [*_PANELS, *(rule["expr"] for rule in RULES)]
#: What Prometheus writes itself.
_ITS_OWN = {"up"}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize("expression", _EXPRESSIONS)
def test_expressions_name_metrics_that_exist(expression: str) -> None:
    used = set(metrics_in(expression))
    assert used or expression.startswith("up{")
    assert used <= exposed_metrics()


def test_dashboard_is_wired() -> None:
    provisioned = yaml.safe_load(
        (MONITORING / "grafana" / "provisioning" / "datasources" / "prometheus.yaml").read_text()
    )
    known = {source["uid"] for source in provisioned["datasources"]}
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == known
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.parametrize("command", [("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")])
def test_promtool_accepts_the_rules(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [tool("promtool"), *command], cwd=MONITORING, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_tests_every_rule() -> None:
    (group,) = yaml.safe_load((MONITORING / "rules_test.yml").read_text())["tests"]
    fired = {test["alertname"] for test in group["alert_rule_test"] if test["exp_alerts"]}
    assert fired == {rule["alert"] for rule in RULES}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """It answers, refuses and logs requests of all kinds until the end."""
    folder = tmp_path_factory.mktemp("monitored")
    publish_affine(folder / "affine", slope=2.0, intercept=0.0)
    collector = f'log_collector_config {{ filename_prefix: "{folder / "log"}" }}'
    log = f"logging_config {{ {collector} sampling_config {{ sampling_rate: 0.5 }} }}"
    models = folder / "models.config"
    models.write_text(config_text(model_text("affine", folder / "affine", platform=f"{TENSORFLOW} {log}")))
    flags = [f"--model_config_file={models}", f"--monitoring_config_file={CONFIG}", "--rest_api_max_body_bytes=10000"]
    with serve(None, model="affine", log_dir=folder, flags=flags) as running:
        ended = threading.Event()
        thread = threading.Thread(target=_keep_asking, args=(running, ended))
        thread.start()
        yield running
        ended.set()
        thread.join()


def _keep_asking(server: RunningServer, ended: threading.Event) -> None:
    request = serving_pb2.PredictRequest()
    request.model_spec.name = "affine"
    request.inputs["x"].CopyFrom(array_to_tensor(np.array([1.0], np.float32)))
    traced = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    v2 = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]}
    with grpc.insecure_channel(server.grpc_address) as channel:
        predict = channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)
        while not ended.wait(0.05):
            predict(request.SerializeToString(), timeout=30, metadata=tuple(traced.items()))
            for path, body in (
                ("/v1/models/affine:predict", b'{"instances": [1.0]}'),
                ("/v1/models/affine:predict", b'{"instances": ["text"]}'),
                ("/v1/models/affine:predict", b" " * 20_000),
                ("/v2/models/affine/infer", json.dumps(v2).encode()),
            ):
                server.post(path, body, traced)


@pytest.fixture(scope="module")
def config(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository's own, for this server, and faster."""
    document = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    (job,) = document["scrape_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{server.rest_port}"]}]
    document["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    document["rule_files"] = [str(MONITORING / name) for name in document["rule_files"]]
    path = tmp_path_factory.mktemp("prometheus") / "prometheus.yml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(scope="module")
def scraped(config: Path) -> Iterator[tuple[Prometheus, Prometheus]]:
    """Two that scrape: one for OpenMetrics and its exemplars, and one for native histograms."""
    with (
        prometheus(config, config.parent / "classic", features=["exemplar-storage"]) as classic,
        prometheus(config, config.parent / "native", features=["native-histograms"]) as native,
    ):
        classic.wait_for('rate(:tensorflow:serving:request_latency_count{API="Predict"}[1m]) > 0')
        native.wait_for("histogram_count(rate(:tensorflow:serving:request_latency[1m])) > 0")
        yield classic, native


@pytest.mark.parametrize("expression", _PANELS)
def test_every_panel_shows_something(scraped: tuple[Prometheus, Prometheus], expression: str) -> None:
    values = scraped[0].values(expression.replace("$model", ".*"))
    assert [value for value in values if value != "NaN"], expression


def test_every_rule_is_evaluated_on_what_is_there(scraped: tuple[Prometheus, Prometheus]) -> None:
    classic, _ = scraped
    for name in sorted({name for rule in RULES for name in metrics_in(rule["expr"])} | _ITS_OWN):
        assert classic.values(f"count({name})"), name
    classic.wait_for("count(up) > 0")
    (group,) = classic.ask("rules")["groups"]
    assert {rule["name"]: rule["health"] for rule in group["rules"]} == {rule["alert"]: "ok" for rule in RULES}
    # Bodies that are too large are refused all the time, and that is the one thing wrong here.
    assert {alert["labels"]["alertname"] for alert in classic.ask("alerts")["alerts"]} <= {"ModelyardRefusing"}


def test_labels_are_those_of_the_table(scraped: tuple[Prometheus, Prometheus]) -> None:
    missing = set()
    for family in FAMILIES:
        name = f"{family.name}_count" if family.kind == "histogram" else family.name
        found = scraped[0].ask("series", **{"match[]": name})
        for series in found:
            # An empty value is none to Prometheus.
            unknown = set(family.labels) - {"model", "model_name"}
            assert unknown <= set(series) - {"__name__", "instance", "job"} <= set(family.labels), name
        if not found:
            missing.add(family.name)
    # Not in use here: batching parameters, warm-up, calls over examples, callers with names, traffic rules, hangs.
    unused = (
        "batching_session", "warmup", "example_count", "client_requests", "traffic_", "shadow_", "hanging",
    )  # fmt: skip
    assert missing == {family.name for family in FAMILIES if any(word in family.name for word in unused)}


def test_requests_of_every_api_are_there(scraped: tuple[Prometheus, Prometheus]) -> None:
    found = scraped[0].ask("series", **{"match[]": ":tensorflow:serving:request_latency_count"})
    apis = {(series["API"], series["entrypoint"]) for series in found}
    assert apis == {("Predict", "GRPC"), ("predict", "REST"), ("infer", "REST")}
    assert float(scraped[0].values('sum(:modelyard:serving:refused{reason="too_large"})')[0]) > 0
    assert float(scraped[0].values(":modelyard:serving:connections")[0]) > 0


def test_no_series_is_on_the_page_twice(server: RunningServer, scraped: tuple[Prometheus, Prometheus]) -> None:
    page = scrape(server)
    assert value(page, ":modelyard:serving:refused", model="", reason="too_large") > 0


def test_exemplars_lead_to_traces(scraped: tuple[Prometheus, Prometheus]) -> None:
    query = ":tensorflow:serving:request_latency_bucket"
    found = scraped[0].ask("query_exemplars", query=query, start=0, end=4e9)
    assert found
    assert {row["labels"]["trace_id"] for series in found for row in series["exemplars"]} == {TRACE}
    assert {series["seriesLabels"]["entrypoint"] for series in found} == {"GRPC", "REST"}


def test_native_histograms_are_read(scraped: tuple[Prometheus, Prometheus]) -> None:
    classic, native = scraped
    # The name alone, without le: only a native histogram has that.
    assert not classic.values(":tensorflow:serving:request_latency")
    for metric in (":tensorflow:serving:request_latency", ":modelyard:serving:queue_latency"):
        (count,) = native.values(f"sum(histogram_count({metric}))")
        (median,) = native.values(f"histogram_quantile(0.5, sum(rate({metric}[1m])))")
        (mean,) = native.values(f"histogram_sum(sum({metric})) / histogram_count(sum({metric}))")
        assert float(count) > 0 and 0 < float(median) < 100 * float(mean)
    # As fine as they are said to be.
    (quantile,) = native.values("histogram_quantile(0.5, sum(:modelyard:serving:batch_rows))")
    assert 0.9 < float(quantile) <= 1
