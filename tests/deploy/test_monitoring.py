"""Prometheus' and Grafana's files: every metric and label they name is one that the server writes."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import DEPLOY, exposed_metrics, metrics_in
from tests.support.models import publish_affine
from tests.support.server import serve

DASHBOARD: dict[str, Any] = json.loads(
    (DEPLOY / "monitoring" / "grafana" / "dashboards" / "modelyard.json").read_text()
)
CONFIG = DEPLOY / "monitoring" / "monitoring.config"
_EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("expression", _EXPRESSIONS)
def test_dashboard_names_metrics_that_exist(expression: str) -> None:
    used = set(metrics_in(expression))
    assert used
    assert used <= exposed_metrics()


def test_dashboard_is_wired() -> None:
    provisioned = yaml.safe_load(
        (DEPLOY / "monitoring" / "grafana" / "provisioning" / "datasources" / "prometheus.yaml").read_text()
    )
    known = {source["uid"] for source in provisioned["datasources"]}
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == known
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_prometheus_scrapes_what_the_server_serves(tmp_path: Path) -> None:
    (job,) = yaml.safe_load((DEPLOY / "monitoring" / "prometheus.yml").read_text())["scrape_configs"]
    publish_affine(tmp_path / "affine", slope=2.0, intercept=0.0)
    flags = [f"--monitoring_config_file={CONFIG}"]
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags) as server:
        assert server.post("/v1/models/affine:predict", b'{"instances": [1.0]}')[0] == 200
        with urllib.request.urlopen(server.rest_url + job["metrics_path"], timeout=10) as response:
            page = response.read().decode()
    labels = {
        name: set(re.findall(r'(\w+)="', text)) for name, text in re.findall(r"^([:\w]+)\{(.*)\} ", page, re.MULTILINE)
    }
    assert ":tensorflow:serving:request_count" in labels
    # A label that a metric lacks makes an empty graph and no error: compare where this run wrote the metric.
    for expression in _EXPRESSIONS:
        for metric in metrics_in(expression):
            if metric in labels:
                wanted = set(re.findall(r"(\w+)(?:=~|!=|=)\"", expression))
                for group in re.findall(r"by \(([^)]*)\)", expression):
                    wanted |= {label.strip() for label in group.split(",")}
                assert wanted - {"instance"} <= labels[metric], expression
