"""Reads a server's Prometheus page."""

from __future__ import annotations

import re
from pathlib import Path

from modelyard.serving.metrics import Metrics, exposition
from tests.support.server import RunningServer

METRICS_PATH = "/monitoring/prometheus/metrics"
_LINE = re.compile(r"^(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)\{(?P<labels>.*)\} (?P<value>\S+)$")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|$)')


def page_of(metrics: Metrics) -> str:
    """The page as text."""
    return exposition(metrics.snapshot(), "")[1].decode()


Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def monitoring_flag(folder: Path) -> str:
    """The flag that turns the page on, and the file that it names."""
    file = folder / "monitoring.config"
    file.write_text(f'prometheus_config {{ enable: true path: "{METRICS_PATH}" }}')
    return f"--monitoring_config_file={file}"


def scrape(server: RunningServer) -> Series:
    """Every series of the page, read as strictly as Prometheus does."""
    status, page = server.get(METRICS_PATH)
    assert (status, page[-1:]) == (200, "\n")
    return series_of(page)


def series_of(page: str) -> Series:
    series: Series = {}
    for line in page.splitlines():
        if line.startswith(("# HELP ", "# TYPE ")):
            continue
        match = _LINE.match(line)
        assert match is not None, line
        labels = _LABEL.findall(match["labels"])
        assert "".join(f'{name}="{value}",' for name, value in labels)[:-1] == match["labels"], line
        key = (match["name"], frozenset(labels))
        assert key not in series, f"twice on the page: {line}"
        series[key] = float(match["value"])
    return series


def in_flight(server: RunningServer) -> float:
    """The requests that wait or are computed; the server has a ``monitoring_flag``."""
    # Not 0 where it is missing: the page has it from the start.
    return scrape(server)[":modelyard:serving:requests_in_flight", frozenset()]


def until_in_flight(server: RunningServer, wanted: float) -> None:
    server.wait_until(lambda: in_flight(server) == wanted, 30, f"{wanted} in flight")


def value(series: Series, name: str, /, **labels: str) -> float:
    """One series; 0 where it is not on the page."""
    return series.get((name, frozenset(labels.items())), 0.0)
